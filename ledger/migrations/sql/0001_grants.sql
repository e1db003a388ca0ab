-- Who may do what. Nobody but duly_ledger writes a table: every write goes through a function above.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA duly FROM PUBLIC;
GRANT EXECUTE ON FUNCTION duly.now() TO duly_app, duly_worker, duly_operator, duly_owner, duly_reader;
GRANT EXECUTE ON FUNCTION duly._utc(timestamptz) TO duly_app, duly_worker, duly_operator, duly_owner, duly_reader;
GRANT EXECUTE ON FUNCTION duly.outlook TO duly_worker, duly_operator, duly_owner, duly_reader;
GRANT EXECUTE ON FUNCTION duly.schedule, duly.cancel, duly.reschedule TO duly_app, duly_operator, duly_owner;
GRANT EXECUTE ON FUNCTION duly.dispatch, duly.give_back, duly.dispatch_failed, duly.forgotten, duly.next_wake, duly.claim,
  duly.instruct, duly.record, duly.look_up, duly.found, duly.decide_by_temporal, duly.witness_now, duly.check_witness,
  duly.watch, duly.serve, duly.quarantine, duly.doubt_gap, duly.doubt_moved, duly.exposed TO duly_worker;
GRANT EXECUTE ON FUNCTION duly.decide, duly.approve, duly.release_connection, duly.preview_plan, duly.make_plan, duly.apply_plan
  TO duly_operator, duly_owner;
GRANT EXECUTE ON FUNCTION duly.configure, duly.adopt TO duly_owner;
GRANT SELECT ON duly.ledger, duly.move, duly.rule, duly.connection, duly.kind, duly.subject, duly.operation, duly.attempt,
  duly.history, duly.evidence, duly.decision, duly.approval, duly.choice, duly.adoption, duly.plan, duly.plan_item, duly.plan_result,
  duly.alerts TO duly_worker, duly_operator, duly_owner, duly_reader;
RESET ROLE;
-- Alembic's own table belongs to whoever migrates; everybody may see which version it is.
GRANT SELECT ON duly.alembic_version TO duly_worker, duly_operator, duly_owner, duly_reader;
