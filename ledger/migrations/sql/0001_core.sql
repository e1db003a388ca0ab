-- The pieces that every write is made of. Names with a leading underscore are for these functions only.

-- What a workflow is told: act is attempt, look_up, wait or ended. delay_ms NULL: until a nudge.
CREATE TYPE duly.step AS (
  act text, attempt int, delay_ms bigint, state text, reason text, generation int, refused text);

-- Locks subject, then operation: the one lock order of the ledger. NULL row: no such key.
CREATE FUNCTION duly._lock(p_key text) RETURNS duly.operation
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_subject text;
  v_op duly.operation;
BEGIN
  SELECT o.subject INTO v_subject FROM duly.operation o WHERE o.key = p_key;
  IF v_subject IS NOT NULL THEN
    PERFORM FROM duly.subject s WHERE s.subject = v_subject FOR UPDATE;
  END IF;
  SELECT * INTO v_op FROM duly.operation o WHERE o.key = p_key FOR UPDATE;
  RETURN v_op;
END $$;

-- When the look-up after p_looked others is due, by the kind's plan (the last interval repeats), a tenth to either side so
-- that what failed together does not ask together. NULL: the provider cannot be asked.
CREATE FUNCTION duly._look_at(p_kind text, p_looked int, p_now timestamptz) RETURNS timestamptz
  LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT p_now + k.look_ups[least(p_looked + 1, cardinality(k.look_ups))] * (0.9 + 0.2 * random()) FROM duly.kind k WHERE k.name = p_kind;
$$;

-- The one way to change a state: guarded UPDATE and its history row, together. False: somebody else moved it first.
CREATE FUNCTION duly._move(
  p_op duly.operation, p_after text, p_who text, p_why text, p_detail jsonb DEFAULT NULL,
  p_resolved int DEFAULT 0, p_wake_at timestamptz DEFAULT NULL, p_retry_at timestamptz DEFAULT NULL,
  p_settled_by text DEFAULT NULL, p_reference text DEFAULT NULL, p_waiting_for text DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := duly.now();
  v_ending boolean := p_after IN
    ('delivered', 'rejected', 'expired', 'exhausted', 'cancelled', 'superseded', 'ineligible', 'abandoned');
BEGIN
  UPDATE duly.operation o SET
    state = p_after, state_since = v_now, ended_at = CASE WHEN v_ending THEN v_now END,
    wake_at = CASE WHEN v_ending THEN NULL ELSE p_wake_at END, retry_at = p_retry_at,
    waiting_for = CASE WHEN v_ending THEN o.waiting_for ELSE p_waiting_for END,
    open_attempts = CASE p_after WHEN 'delivered' THEN 0 ELSE o.open_attempts - p_resolved END,
    settled_by = p_settled_by, provider_reference = coalesce(p_reference, o.provider_reference),
    pending_decision = NULL, pending_at = NULL, in_hand = false, redispatches = 0,
    -- a decision opened it again: the next generation, with its attempts before it
    generation = o.generation + (o.ended_at IS NOT NULL AND NOT v_ending)::int,
    spent = CASE WHEN o.ended_at IS NOT NULL AND NOT v_ending THEN 0 ELSE o.spent END,
    -- a doubt begins: the first look-up is set; it ends: none is due
    looked = 0, look_at = CASE WHEN p_after IN ('accepted', 'unknown') THEN duly._look_at(o.kind, 0, v_now) END,
    no_repeat = CASE WHEN p_after IN ('calling', 'unknown') THEN o.no_repeat END
  WHERE o.key = p_op.key AND o.state = p_op.state AND o.attempts = p_op.attempts;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO duly.history (key, at, before, after, who, why, attempt, detail)
  VALUES (p_op.key, v_now, p_op.state, p_after, p_who, p_why, nullif(p_op.attempts, 0),
    CASE WHEN p_after = 'delivered' THEN coalesce(p_detail, '{}') || jsonb_strip_nulls(
      jsonb_build_object('settled_by', p_settled_by, 'reference', p_reference)) ELSE p_detail END);
  IF p_op.subject IS NOT NULL AND p_op.state IN ('calling', 'accepted', 'unknown')
     AND p_after NOT IN ('calling', 'accepted', 'unknown') THEN
    -- A settled predecessor wakes those that wait for it. The subject lock makes this race-free.
    UPDATE duly.operation o SET wake_at = v_now
    WHERE o.subject = p_op.subject AND o.state = 'scheduled' AND o.waiting_for = 'predecessor';
  END IF;
  RETURN true;
END $$;

-- How long after the moment a workflow should act the sweep looks again: the first redispatch step, one minute.
CREATE FUNCTION duly._grace() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '1 minute';

-- Seconds are rounded up, and "not yet" is at least a second, so that a workflow never spins on a fraction.
CREATE FUNCTION duly._delay_ms(p_until timestamptz, p_now timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE
  RETURN greatest(1000, ceil(extract(epoch FROM p_until - p_now) * 1000))::bigint;

CREATE FUNCTION duly._delay_or_now(p_at timestamptz, p_now timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE
  RETURN CASE WHEN p_at > p_now THEN duly._delay_ms(p_at, p_now) ELSE 0 END;

-- When the same bytes may be sent again with the same key; NULL: never, and why in p_why. Every rule must hold.
CREATE FUNCTION duly._repeat_at(p_op duly.operation, OUT at timestamptz, OUT why text)
  LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_kind duly.kind;
  v_first duly.attempt;
  v_last duly.attempt;
BEGIN
  SELECT * INTO v_kind FROM duly.kind k WHERE k.name = p_op.kind;
  SELECT * INTO v_first FROM duly.attempt a WHERE a.key = p_op.key AND a.epoch = p_op.epoch ORDER BY a.number LIMIT 1;
  SELECT * INTO v_last FROM duly.attempt a WHERE a.key = p_op.key ORDER BY a.number DESC LIMIT 1;
  -- No earlier request can still be under way then.
  at := v_last.send_before + v_kind.settle;
  why := CASE
    WHEN p_op.state <> 'unknown' THEN 'it is ' || p_op.state
    WHEN v_kind.repeat_within = interval '0' THEN 'the provider is not known to recognise a repeat'
    WHEN p_op.no_repeat IS NOT NULL THEN p_op.no_repeat
    WHEN p_op.stop_requested IS NOT NULL THEN 'a stop was requested'
    WHEN p_op.version < (SELECT s.newest_version FROM duly.subject s WHERE s.subject = p_op.subject) THEN 'a newer version took its place'
    WHEN p_op.spent >= v_kind.max_attempts THEN p_op.spent || ' attempts are used'
    WHEN v_kind.stores_errors AND v_last.status_code >= 500 THEN 'the provider stores its errors: the key would bring back status ' || v_last.status_code
    WHEN at + v_kind.call_limit > v_first.claimed_at + v_kind.repeat_within
      THEN 'the provider may have forgotten the key: its safe retention ends ' || duly._utc(v_first.claimed_at + v_kind.repeat_within)
    WHEN at + v_kind.call_limit > p_op.deadline THEN 'no call would fit before the deadline'
  END;
  IF why IS NOT NULL THEN
    at := NULL;
  END IF;
END $$;

-- The instruction that a row's state amounts to. Pure reading; the time-driven moves were made before.
CREATE FUNCTION duly._next(p_op duly.operation, p_now timestamptz) RETURNS duly.step
  LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_at timestamptz;
  v_repeat timestamptz;
BEGIN
  CASE p_op.state
    WHEN 'scheduled' THEN
      v_at := greatest(p_op.due_at, coalesce(p_op.retry_at, p_op.due_at));
      RETURN ('attempt', p_op.attempts + 1, duly._delay_or_now(v_at, p_now), p_op.state,
               coalesce(p_op.waiting_for, 'due'), p_op.generation, NULL)::duly.step;
    WHEN 'calling' THEN
      RETURN ('wait', p_op.attempts, duly._delay_ms(p_op.lease_until, p_now), p_op.state, 'lease', p_op.generation, NULL)::duly.step;
    WHEN 'accepted' THEN
      IF p_op.look_at < p_op.lease_until THEN
        RETURN ('look_up', p_op.attempts, duly._delay_or_now(p_op.look_at, p_now), p_op.state, 'provider', p_op.generation, NULL)::duly.step;
      END IF;
      RETURN ('wait', p_op.attempts, duly._delay_ms(p_op.lease_until, p_now), p_op.state, 'provider', p_op.generation, NULL)::duly.step;
    WHEN 'unknown' THEN
      IF p_op.pending_at IS NOT NULL AND (p_op.pending_at <= p_op.look_at) IS NOT FALSE THEN
        RETURN ('wait', p_op.attempts, duly._delay_ms(p_op.pending_at, p_now), p_op.state, 'settle time', p_op.generation, NULL)::duly.step;
      END IF;
      IF p_op.pending_at IS NULL THEN
        SELECT greatest(r.at, CASE WHEN r.at IS NOT NULL THEN p_op.retry_at END) INTO v_repeat FROM duly._repeat_at(p_op) r;
      END IF;
      IF v_repeat < p_op.look_at OR (v_repeat IS NOT NULL AND p_op.look_at IS NULL) THEN
        RETURN ('attempt', p_op.attempts + 1, duly._delay_or_now(v_repeat, p_now), p_op.state,
          coalesce('repeat with the same key; ' || p_op.waiting_for, 'repeat with the same key'), p_op.generation, NULL)::duly.step;
      ELSIF p_op.look_at IS NOT NULL THEN
        RETURN ('look_up', p_op.attempts, duly._delay_or_now(p_op.look_at, p_now), p_op.state, 'evidence', p_op.generation, NULL)::duly.step;
      END IF;
      RETURN ('wait', p_op.attempts, NULL, p_op.state, 'person', p_op.generation, NULL)::duly.step;
    WHEN 'blocked' THEN
      RETURN ('wait', p_op.attempts, NULL, p_op.state, 'person', p_op.generation, NULL)::duly.step;
    ELSE
      RETURN ('ended', p_op.attempts, 0, p_op.state, p_op.state, p_op.generation, NULL)::duly.step;
  END CASE;
END $$;

-- Reads the instruction and sets the alarm just past the time at which the workflow should have acted on it.
CREATE FUNCTION duly._arm(p_key text) RETURNS duly.step
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_op duly.operation;
  v_now timestamptz := duly.now();
  v_step duly.step;
BEGIN
  SELECT * INTO v_op FROM duly.operation o WHERE o.key = p_key;
  v_step := duly._next(v_op, v_now);
  IF v_step.act <> 'ended' THEN
    UPDATE duly.operation o SET in_hand = false, redispatches = 0, dispatch_error = NULL,
      wake_at = v_now + v_step.delay_ms * interval '1 millisecond' + duly._grace()
    WHERE o.key = p_key;
  END IF;
  RETURN v_step;
END $$;

CREATE FUNCTION duly._step_ended(p_reason text) RETURNS duly.step LANGUAGE sql IMMUTABLE
  RETURN ('ended', 0, 0, 'ended', p_reason, 0, NULL)::duly.step;

-- An attempt's silence past its lease: unknown, never "not sent".
CREATE FUNCTION duly._lease_over(p_op duly.operation, p_who text, p_why text) RETURNS void
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE duly.attempt a SET outcome = 'unknown', recorded_at = duly.now(), detail = p_why
  WHERE a.key = p_op.key AND a.number = p_op.attempts AND a.outcome IS NULL;
  -- It counts as an attempt, or a payload that kills its worker would be tried for ever.
  UPDATE duly.operation o SET spent = o.spent + 1 WHERE o.key = p_op.key;
  PERFORM duly._move(p_op, 'unknown', p_who, p_why, p_wake_at => duly.now());
END $$;

-- No attempt is in doubt any more and this one had no effect: what follows. p_next is what the outcome alone would make
-- of it (scheduled, rejected or blocked); a delivered earlier attempt, a stop or a newer version comes first.
CREATE FUNCTION duly._without_effect(
  p_op duly.operation, p_who text, p_why text, p_detail jsonb, p_resolved int, p_delay interval, p_next text DEFAULT 'scheduled'
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_kind duly.kind;
  v_now timestamptz := duly.now();
  v_newest bigint;
  v_delivered duly.attempt;
BEGIN
  SELECT * INTO v_kind FROM duly.kind k WHERE k.name = p_op.kind;
  SELECT s.newest_version INTO v_newest FROM duly.subject s WHERE s.subject = p_op.subject;
  -- Its late reply came while a newer attempt was in flight and was kept as evidence until now.
  SELECT * INTO v_delivered FROM duly.attempt a WHERE a.key = p_op.key AND a.outcome = 'delivered' ORDER BY a.number LIMIT 1;
  IF FOUND THEN
    PERFORM duly._move(p_op, 'delivered', p_who, p_why || '; attempt ' || v_delivered.number || ' was delivered', p_detail,
                       p_settled_by => 'reply', p_reference => v_delivered.provider_reference);
  ELSIF p_op.stop_requested IS NOT NULL THEN
    PERFORM duly._move(p_op, 'cancelled', p_who, p_why || '; stop was requested: ' || p_op.stop_requested, p_detail, p_resolved);
  ELSIF p_next = 'rejected' THEN
    PERFORM duly._move(p_op, 'rejected', p_who, p_why, p_detail, p_resolved);
  ELSIF v_newest > p_op.version THEN
    PERFORM duly._move(p_op, 'superseded', p_who, p_why || '; version ' || v_newest || ' took its place', p_detail, p_resolved);
  ELSIF p_next = 'blocked' THEN
    PERFORM duly._move(p_op, 'blocked', p_who, p_why, p_detail, p_resolved);
  ELSIF p_op.spent >= v_kind.max_attempts THEN
    PERFORM duly._move(p_op, 'exhausted', p_who, p_why || '; ' || p_op.spent || ' attempts used', p_detail, p_resolved);
  ELSIF v_now + p_delay + v_kind.call_limit > p_op.deadline THEN
    PERFORM duly._move(p_op, 'expired', p_who, p_why || '; no call would fit before the deadline', p_detail, p_resolved);
  ELSE
    PERFORM duly._move(p_op, 'scheduled', p_who, p_why, p_detail, p_resolved, v_now + p_delay, v_now + p_delay,
                       p_waiting_for => p_why);
  END IF;
END $$;
