"""The scenarios assert outside of test modules; their failures are to be as readable."""

import pytest

pytest.register_assert_rewrite("tests.conformance.calls", "tests.conformance.look_ups", "tests.conformance.stage")
