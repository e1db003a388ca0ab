-- The claim: the committed row that says "this may now be in flight". Written before any byte is sent.

CREATE TYPE duly.claimed AS (
  granted boolean, act text, attempt int, delay_ms bigint, state text, reason text, generation int,
  kind text, connection text, idempotency_key text, payload jsonb, trace_context jsonb,
  call_limit_ms bigint, send_within_ms bigint, lease_ms bigint);

-- 25 lower-case hex digits: fits every provider's key field that has a documented limit (providers.md: Discord 25).
CREATE FUNCTION duly._idempotency_key(p_op duly.operation) RETURNS text
  LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT left(encode(sha256(convert_to(l.id || '|' || p_op.key || '|' || p_op.epoch, 'UTF8')), 'hex'), 25) FROM duly.ledger l;
$$;

CREATE FUNCTION duly._not_granted(p_step duly.step) RETURNS duly.claimed LANGUAGE sql IMMUTABLE
  RETURN (false, p_step.act, p_step.attempt, p_step.delay_ms, p_step.state, p_step.reason, p_step.generation,
          NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::duly.claimed;

CREATE FUNCTION duly._granted(p_op duly.operation, p_kind duly.kind, p_attempt duly.attempt, p_now timestamptz) RETURNS duly.claimed
  LANGUAGE sql STABLE
  RETURN (true, 'attempt', p_attempt.number, 0, 'calling', 'claimed', p_op.generation, p_op.kind, p_kind.connection,
    p_attempt.idempotency_key, p_op.payload, p_op.trace_context, extract(epoch FROM p_kind.call_limit) * 1000,
    floor(extract(epoch FROM p_attempt.send_before - p_now) * 1000), extract(epoch FROM p_kind.lease) * 1000)::duly.claimed;

-- Waits, but never past the deadline, and remembers for what.
CREATE FUNCTION duly._hold(p_op duly.operation, p_until timestamptz, p_now timestamptz, p_for text) RETURNS duly.claimed
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  -- Past its deadline only a quarantine holds it: then there is nothing to be punctual for.
  v_delay bigint := duly._delay_ms(CASE WHEN p_op.deadline > p_now THEN least(p_until, p_op.deadline) ELSE p_until END, p_now);
BEGIN
  UPDATE duly.operation o SET waiting_for = p_for, in_hand = false, redispatches = 0, dispatch_error = NULL,
    wake_at = p_now + v_delay * interval '1 millisecond' + duly._grace(),
    -- A repeat that must wait leaves the turn to the look-ups.
    retry_at = CASE p_op.state WHEN 'unknown' THEN p_now + v_delay * interval '1 millisecond' ELSE o.retry_at END
  WHERE o.key = p_op.key;
  IF p_op.state = 'unknown' THEN
    RETURN duly._not_granted(duly._arm(p_op.key));
  END IF;
  RETURN (false, 'attempt', p_op.attempts + 1, v_delay, p_op.state, p_for, p_op.generation,
          NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::duly.claimed;
END $$;

CREATE FUNCTION duly.claim(
  p_key text, p_generation int, p_attempt int, p_token uuid, p_worker text, p_run_id text, p_activity_id text, p_connections jsonb,
  p_witness jsonb DEFAULT NULL
) RETURNS duly.claimed LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_op duly.operation;
  v_kind duly.kind;
  v_connection duly.connection;
  v_guard text;
  v_now timestamptz;
  v_subject duly.subject;
  v_before text;
  v_attempt duly.attempt;
  v_scope text;
  v_rendering text;
  v_changed int;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    PERFORM duly._refuse('a claim needs READ COMMITTED: its checks must see what was committed while it waited for the locks',
      'Begin the transaction with ISOLATION LEVEL READ COMMITTED.', '25001');
  END IF;
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);  -- a claim that a crash could forget would be sent again
  END IF;
  v_op := duly._lock(p_key);
  v_now := duly.now();                                     -- after the locks, never before
  IF v_op.key IS NULL THEN
    RETURN duly._not_granted(duly._step_ended('the ledger does not know this key'));
  ELSIF v_op.generation <> p_generation THEN
    RETURN duly._not_granted(duly._step_ended('another generation: ' || v_op.generation));
  END IF;
  SELECT * INTO v_kind FROM duly.kind k WHERE k.name = v_op.kind;
  SELECT * INTO v_connection FROM duly.connection c WHERE c.name = v_kind.connection;
  IF v_op.state NOT IN ('scheduled', 'unknown') OR v_op.attempts <> p_attempt - 1
     OR (v_op.state = 'unknown' AND (v_op.pending_decision IS NOT NULL OR (SELECT r.at <= v_now FROM duly._repeat_at(v_op) r) IS NOT TRUE)) THEN
    IF v_op.state = 'calling' AND v_op.attempts = p_attempt THEN
      -- After a cut COMMIT only the holder of the token may go on, for what is left of its time.
      SELECT * INTO v_attempt FROM duly.attempt a
        WHERE a.key = p_key AND a.number = p_attempt AND a.token = p_token AND a.outcome IS NULL;
      IF FOUND THEN
        RETURN duly._granted(v_op, v_kind, v_attempt, v_now);
      END IF;
    END IF;
    -- Ended, in doubt with no repeat permitted now, claimed by an earlier run of this activity, or no longer the next attempt.
    RETURN duly._not_granted(duly._settle_time(v_op, p_worker));
  END IF;
  v_guard := duly._guard(p_witness, p_worker);
  IF v_guard = 'quarantine' THEN
    RETURN duly._hold(v_op, v_now + duly._grace(), v_now, 'quarantine');
  ELSIF v_guard IS NOT NULL THEN
    -- A second, while a worker looks at what was in hand. The row stays as it is: it says that this one was.
    RETURN duly._not_granted(('attempt', p_attempt, 1000, v_op.state, v_guard, v_op.generation, NULL)::duly.step);
  END IF;
  v_scope := coalesce(p_connections #>> ARRAY[v_connection.name, 'scope'], v_connection.provider || '/' || v_connection.name);
  v_rendering := p_connections #>> ARRAY[v_connection.name, 'rendering'];
  IF NOT p_connections ? v_connection.name THEN
    RETURN duly._hold(v_op, v_now + duly._grace(), v_now, 'the worker that took it has no adapter for connection ' || v_connection.name);
  END IF;
  -- A repeat needs no more of the following checks than those that hold a connection: _repeat_at has made its own.
  IF v_op.state = 'unknown' THEN
    SELECT a.number INTO v_changed FROM duly.attempt a WHERE a.key = p_key AND a.epoch = v_op.epoch AND a.resolved_at IS NULL
      AND (a.scope <> v_scope OR a.rendering IS DISTINCT FROM v_rendering) ORDER BY a.number LIMIT 1;
    IF FOUND THEN
      UPDATE duly.operation o SET no_repeat = 'account, region, credential or bytes are not those of attempt ' || v_changed WHERE o.key = p_key;
      RETURN duly._not_granted(duly._arm(p_key));
    END IF;
  END IF;
  IF v_op.state = 'scheduled' AND v_op.subject IS NOT NULL THEN
    SELECT * INTO v_subject FROM duly.subject s WHERE s.subject = v_op.subject;
    IF v_subject.newest_version > v_op.version THEN
      PERFORM duly._move(v_op, 'superseded', p_worker, 'version ' || v_subject.newest_version || ' (' || v_subject.newest_key || ') took its place');
      RETURN duly._not_granted(duly._arm(p_key));
    END IF;
  END IF;
  IF v_op.state = 'scheduled' AND v_now + v_kind.call_limit > v_op.deadline THEN
    PERFORM duly._move(v_op, 'expired', p_worker, 'no call fits before the deadline'
      || coalesce('; it waited for: ' || v_op.waiting_for, ''));
    RETURN duly._not_granted(duly._arm(p_key));
  ELSIF v_op.state = 'scheduled' AND v_now < greatest(v_op.due_at, v_op.retry_at) THEN
    RETURN duly._hold(v_op, greatest(v_op.due_at, v_op.retry_at), v_now, coalesce(v_op.waiting_for, 'due'));
  END IF;
  IF v_connection.held IS NOT NULL OR v_connection.not_before > v_now THEN
    -- Read again under a lock: a release at this moment either is seen here or sees that this row waits.
    SELECT * INTO v_connection FROM duly.connection c WHERE c.name = v_kind.connection FOR SHARE;
  END IF;
  IF v_connection.held IS NOT NULL THEN
    RETURN duly._hold(v_op, v_op.deadline, v_now, 'connection ' || v_connection.name || ' is held');
  ELSIF v_connection.not_before > v_now THEN
    RETURN duly._hold(v_op, v_connection.not_before, v_now, 'connection ' || v_connection.name || ' is throttled');
  END IF;
  IF v_op.state = 'scheduled' AND v_op.subject IS NOT NULL THEN
    SELECT o.key INTO v_before FROM duly.operation o WHERE o.subject = v_op.subject AND o.version < v_op.version
      AND o.state IN ('calling', 'accepted', 'unknown') ORDER BY o.version LIMIT 1;
    IF v_before IS NOT NULL THEN
      RETURN duly._hold(v_op, v_op.deadline, v_now, 'predecessor');
    END IF;
  END IF;
  IF v_op.state = 'scheduled' AND v_op.spent >= v_kind.max_attempts THEN
    PERFORM duly._move(v_op, 'exhausted', p_worker, v_op.spent || ' attempts used');
    RETURN duly._not_granted(duly._arm(p_key));
  END IF;

  -- The call must begin early enough to end before the lease and before the deadline.
  INSERT INTO duly.attempt (key, number, token, generation, epoch, worker, run_id, activity_id, idempotency_key, scope,
      rendering, claimed_at, send_before, lease_until)
    VALUES (p_key, p_attempt, p_token, v_op.generation, v_op.epoch, p_worker, p_run_id, p_activity_id,
      duly._idempotency_key(v_op), v_scope, v_rendering, v_now,
      least(v_now + v_kind.lease, v_op.deadline) - v_kind.call_limit, v_now + v_kind.lease)
    RETURNING * INTO v_attempt;
  UPDATE duly.operation o SET state = 'calling', state_since = v_now, attempts = p_attempt, open_attempts = o.open_attempts + 1,
    lease_until = v_now + v_kind.lease, in_hand = false, redispatches = 0, dispatch_error = NULL, waiting_for = NULL,
    -- a second past the lease, so that the sweep which looks finds it over
    retry_at = NULL, look_at = NULL, wake_at = v_now + v_kind.lease + interval '1 second'
    WHERE o.key = p_key AND o.state = v_op.state AND o.attempts = p_attempt - 1;
  INSERT INTO duly.history (key, at, before, after, who, why, attempt)
    VALUES (p_key, v_now, v_op.state, 'calling', p_worker, CASE v_op.state WHEN 'unknown' THEN 'repeat with the same key: ' ELSE '' END
      || 'attempt ' || p_attempt || ' claimed', p_attempt);
  RETURN duly._granted(v_op, v_kind, v_attempt, v_now);
END $$;

-- The moves that time alone makes, then the instruction: lease over, bound of "accepted" over, a decision effective.
CREATE FUNCTION duly._settle_time(p_op duly.operation, p_who text) RETURNS duly.step
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := duly.now();
BEGIN
  IF p_op.state = 'calling' AND v_now >= p_op.lease_until THEN
    PERFORM duly._lease_over(p_op, p_who, 'the lease of attempt ' || p_op.attempts || ' ended without a record');
  ELSIF p_op.state = 'accepted' AND v_now >= p_op.lease_until THEN
    PERFORM duly._move(p_op, 'unknown', p_who, 'the provider accepted it and its bound passed without a result', p_wake_at => v_now);
  ELSIF p_op.state = 'unknown' AND v_now >= p_op.pending_at THEN
    PERFORM duly._apply(d, p_op, p_who) FROM duly.decision d WHERE d.id = p_op.pending_decision;
  END IF;
  RETURN duly._arm(p_op.key);
END $$;

-- Asked by a workflow that does not know what to do next.
CREATE FUNCTION duly.instruct(p_key text, p_generation int, p_worker text) RETURNS duly.step
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_op duly.operation;
BEGIN
  v_op := duly._lock(p_key);
  IF v_op.key IS NULL THEN
    RETURN duly._step_ended('the ledger does not know this key');
  ELSIF v_op.generation <> p_generation THEN
    RETURN duly._step_ended('another generation: ' || v_op.generation);
  END IF;
  RETURN duly._settle_time(v_op, p_worker);
END $$;
