"""The workflow calls stubs; what runs behind them must have the same names and types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from temporalio import activity

from activities.attempt import Attempts
from activities.settle import Settling
from config.search_attributes import SEARCH_ATTRIBUTES
from workflows import contract


def activities_in(owner: object) -> dict[str, Callable[..., Any]]:
    """Activity name to the function that is defined as it."""
    found: dict[str, Callable[..., Any]] = {}
    for _, function in inspect.getmembers(owner, callable):
        definition = activity._Definition.from_callable(function)
        if definition is not None and definition.name is not None:
            found[definition.name] = function
    return found


STUBS = activities_in(contract)
IMPLEMENTATIONS = {**activities_in(Attempts), **activities_in(Settling)}


def signature(function: Callable[..., Any]) -> tuple[list[Any], Any]:
    hints = get_type_hints(function)
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    return [hints[name] for name in parameters], hints["return"]


def test_each_stub_has_an_implementation_and_no_implementation_lacks_a_stub() -> None:
    assert STUBS.keys() == IMPLEMENTATIONS.keys()
    assert STUBS


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_and_its_implementation_have_the_same_types(name: str) -> None:
    assert signature(STUBS[name]) == signature(IMPLEMENTATIONS[name])
    assert len(signature(STUBS[name])[0]) == 1  # one object, so that fields can be added


@pytest.mark.parametrize("name", STUBS)
async def test_a_stub_runs_nothing_by_itself(name: str) -> None:
    with pytest.raises(NotImplementedError):
        await STUBS[name](None)


def test_the_search_attribute_that_the_workflow_touches_is_one_that_is_registered() -> None:
    assert SEARCH_ATTRIBUTES[contract.STATE_ATTRIBUTE] == "Keyword"
