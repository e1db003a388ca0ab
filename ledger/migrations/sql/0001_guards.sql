-- What the database refuses by itself, whoever asks, the owner of the tables included.

CREATE FUNCTION duly._append_only() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION '% of duly.% refused: it is append-only', TG_OP, TG_TABLE_NAME USING ERRCODE = '42501';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON duly.history
  FOR EACH STATEMENT EXECUTE FUNCTION duly._append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON duly.evidence
  FOR EACH STATEMENT EXECUTE FUNCTION duly._append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON duly.decision
  FOR EACH STATEMENT EXECUTE FUNCTION duly._append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON duly.approval
  FOR EACH STATEMENT EXECUTE FUNCTION duly._append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON duly.plan
  FOR EACH STATEMENT EXECUTE FUNCTION duly._append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON duly.plan_item
  FOR EACH STATEMENT EXECUTE FUNCTION duly._append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON duly.plan_result
  FOR EACH STATEMENT EXECUTE FUNCTION duly._append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON duly.adoption
  FOR EACH STATEMENT EXECUTE FUNCTION duly._append_only();
CREATE TRIGGER never_removed BEFORE DELETE OR TRUNCATE ON duly.operation
  FOR EACH STATEMENT EXECUTE FUNCTION duly._append_only();
CREATE TRIGGER never_removed BEFORE DELETE OR TRUNCATE ON duly.attempt
  FOR EACH STATEMENT EXECUTE FUNCTION duly._append_only();

CREATE FUNCTION duly._guard_operation() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (NEW.key, NEW.kind, NEW.payload_digest, NEW.created_at, NEW.created_by) IS DISTINCT FROM
     (OLD.key, OLD.kind, OLD.payload_digest, OLD.created_at, OLD.created_by)
     OR (NEW.subject, NEW.version, NEW.tenant) IS DISTINCT FROM (OLD.subject, OLD.version, OLD.tenant)
     OR NEW.payload IS DISTINCT FROM OLD.payload THEN
    RAISE EXCEPTION 'key, kind, subject, version, tenant and payload of % are frozen', OLD.key USING ERRCODE = '42501';
  END IF;
  IF NEW.state <> OLD.state
     AND NOT EXISTS (SELECT FROM duly.move m WHERE m.before = OLD.state AND m.after = NEW.state) THEN
    RAISE EXCEPTION 'illegal move of %: % to %', OLD.key, OLD.state, NEW.state USING ERRCODE = '23514';
  END IF;
  IF OLD.ended_at IS NOT NULL AND NEW.ended_at IS NULL AND NEW.generation <> OLD.generation + 1 THEN
    RAISE EXCEPTION '% has ended: only the next generation opens it again', OLD.key USING ERRCODE = '23514';
  END IF;
  IF NEW.attempts NOT IN (OLD.attempts, OLD.attempts + 1) OR NEW.epoch < OLD.epoch OR NEW.generation < OLD.generation THEN
    RAISE EXCEPTION 'attempts, epoch and generation of % only grow', OLD.key USING ERRCODE = '23514';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE ON duly.operation
  FOR EACH ROW EXECUTE FUNCTION duly._guard_operation();

CREATE FUNCTION duly._guard_attempt() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (NEW.key, NEW.number, NEW.token, NEW.idempotency_key, NEW.claimed_at, NEW.send_before, NEW.lease_until)
     IS DISTINCT FROM (OLD.key, OLD.number, OLD.token, OLD.idempotency_key, OLD.claimed_at, OLD.send_before, OLD.lease_until)
     OR (OLD.outcome IS NOT NULL AND OLD.outcome <> 'unknown' AND NEW.outcome IS DISTINCT FROM OLD.outcome)
     -- Believed to be without effect, and then the provider's late word that it is working on it: open again.
     OR (OLD.resolved_at IS NOT NULL AND NEW.resolved_at IS NULL AND NOT (OLD.outcome = 'unknown' AND NEW.outcome = 'accepted')) THEN
    RAISE EXCEPTION 'attempt % of % is on record already', OLD.number, OLD.key USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE ON duly.attempt
  FOR EACH ROW EXECUTE FUNCTION duly._guard_attempt();
