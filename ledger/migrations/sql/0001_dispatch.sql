-- The sweep: find rows that need a workflow now, mark them, and give back what could not be started.

CREATE TYPE duly.dispatch AS (
  key text, kind text, provider text, tenant text, generation int, fresh boolean, state text, due_at timestamptz,
  deadline timestamptz, attempt int, delay_ms bigint, lease_ms bigint, marked_at timestamptz, wake_at timestamptz);

-- One bounded batch, oldest first, marked and moved on (a minute, doubling to an hour). Commit it before any start.
-- While p_in_hand_limit rows are with Temporal unclaimed, only rows that had a workflow before are taken, so that a
-- backlog does not feed itself.
CREATE FUNCTION duly.dispatch(p_limit int, p_in_hand_limit int, p_who text) RETURNS SETOF duly.dispatch
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := duly.now();
  v_full boolean;
  v_row duly.dispatch;
BEGIN
  SELECT count(*) >= p_in_hand_limit INTO v_full
    FROM (SELECT FROM duly.operation o WHERE o.in_hand LIMIT p_in_hand_limit) AS h;
  FOR v_row IN
    UPDATE duly.operation o SET
      dispatched_at = v_now, redispatches = o.redispatches + 1, in_hand = (o.state = 'scheduled'),
      wake_at = v_now + least(interval '1 hour', interval '1 minute' * power(2, least(o.redispatches, 10)))
    FROM (SELECT q.key, q.dispatched_at IS NULL AS fresh, k.name AS kind, k.lease, c.provider
          FROM duly.operation q JOIN duly.kind k ON k.name = q.kind JOIN duly.connection c ON c.name = k.connection
          WHERE q.wake_at <= v_now AND (NOT v_full OR q.dispatched_at IS NOT NULL)
          ORDER BY q.wake_at LIMIT p_limit FOR UPDATE OF q SKIP LOCKED) AS picked
    WHERE o.key = picked.key
    RETURNING o.key, picked.kind, picked.provider, o.tenant, o.generation, picked.fresh, o.state, o.due_at, o.deadline,
      o.attempts + 1,
      CASE WHEN greatest(o.due_at, o.retry_at) > v_now THEN duly._delay_ms(greatest(o.due_at, o.retry_at), v_now) ELSE 0 END,
      extract(epoch FROM picked.lease) * 1000, v_now, o.wake_at
  LOOP
    RETURN NEXT v_row;
  END LOOP;
  RETURN;
END $$;

-- A start that was refused or never made: the alarm goes back, if nobody moved it since. p_untried: no call left for
-- this row, so it is as fresh as before.
CREATE FUNCTION duly.give_back(p_key text, p_wake_at timestamptz, p_fresh boolean, p_untried boolean) RETURNS boolean
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE duly.operation o SET wake_at = duly.now(), in_hand = false, redispatches = greatest(0, o.redispatches - 1),
    dispatched_at = CASE WHEN p_fresh AND p_untried THEN NULL ELSE o.dispatched_at END
  WHERE o.key = p_key AND o.wake_at = p_wake_at;
  RETURN FOUND;
END $$;

-- An error that concerns this row only: recorded, backed off by its alarm, shown while it lasts.
CREATE FUNCTION duly.dispatch_failed(p_key text, p_wake_at timestamptz, p_error text) RETURNS boolean
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE duly.operation o SET dispatch_error = p_error, in_hand = false WHERE o.key = p_key AND o.wake_at = p_wake_at;
  RETURN FOUND;
END $$;

-- A run that this ledger does not know of may have sent: a stand-in attempt carries the doubt.
CREATE FUNCTION duly._doubt(p_op duly.operation, p_who text, p_run_id text, p_cause text) RETURNS void
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := duly.now();
BEGIN
  INSERT INTO duly.attempt (key, number, token, generation, epoch, worker, run_id, idempotency_key, scope, claimed_at,
      send_before, lease_until, outcome, recorded_at, detail)
    VALUES (p_op.key, p_op.attempts + 1, gen_random_uuid(), p_op.generation, p_op.epoch, p_who, p_run_id,
      duly._idempotency_key(p_op), 'unknown', v_now, v_now, v_now, 'unknown', v_now, p_cause);
  UPDATE duly.operation o SET attempts = o.attempts + 1, open_attempts = o.open_attempts + 1, state = 'unknown',
    state_since = v_now, wake_at = v_now, in_hand = false, lease_until = v_now,
    retry_at = NULL, waiting_for = NULL, spent = o.spent + 1,
    looked = 0, look_at = duly._look_at(o.kind, 0, v_now), no_repeat = 'the ledger does not know when its key was first sent'
    WHERE o.key = p_op.key AND o.state = 'scheduled' AND o.attempts = p_op.attempts;
  INSERT INTO duly.history (key, at, before, after, who, why, attempt, detail)
    VALUES (p_op.key, v_now, p_op.state, 'unknown', p_who, p_cause, p_op.attempts + 1, jsonb_build_object('run_id', p_run_id));
END $$;

-- Temporal knows a run of this key that the ledger does not: the ledger was restored from an older copy. The run may
-- have sent, so a stand-in attempt carries the doubt, and nothing is sent.
CREATE FUNCTION duly.forgotten(p_key text, p_marked_at timestamptz, p_who text, p_run_id text, p_cause text) RETURNS boolean
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_op duly.operation;
BEGIN
  v_op := duly._lock(p_key);
  IF v_op.key IS NULL OR v_op.dispatched_at IS DISTINCT FROM p_marked_at OR v_op.state NOT IN ('scheduled', 'calling') THEN
    RETURN false;
  ELSIF v_op.state = 'calling' THEN
    PERFORM duly._lease_over(v_op, p_who, p_cause);
    RETURN true;
  END IF;
  PERFORM duly._doubt(v_op, p_who, p_run_id, p_cause);
  RETURN true;
END $$;

-- When the next row wants attention, in milliseconds from now (0: overdue), and how old the oldest due one is.
CREATE FUNCTION duly.next_wake(OUT wait_ms bigint, OUT oldest_eligible_s double precision)
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := duly.now();
  v_wake timestamptz;
BEGIN
  SELECT min(o.wake_at) INTO v_wake FROM duly.operation o WHERE o.wake_at IS NOT NULL;
  IF v_wake IS NOT NULL THEN
    wait_ms := greatest(0, ceil(extract(epoch FROM v_wake - v_now) * 1000))::bigint;
    oldest_eligible_s := CASE WHEN v_wake <= v_now THEN extract(epoch FROM v_now - v_wake) END;  -- NULL: nothing is due
  END IF;
END $$;
