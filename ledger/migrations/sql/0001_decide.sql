-- A person's choice is a ledger row first. The workflow is told afterwards, and if that is lost the sweep finds the row.

CREATE TYPE duly.decided AS (
  key text, accepted boolean, decision bigint, state text, effective_utc text, answer text);

CREATE FUNCTION duly._apply_not_delivered(p_op duly.operation, p_who text) RETURNS void
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_named int[];
BEGIN
  WITH named AS (
    UPDATE duly.attempt a SET resolved_at = duly.now(), resolved_by = 'decision ' || p_op.pending_decision, effect = false
    WHERE a.key = p_op.key AND a.resolved_at IS NULL RETURNING a.number)
  SELECT array_agg(n.number ORDER BY n.number) INTO v_named FROM named n;
  PERFORM duly._without_effect(p_op, p_who, 'decision ' || p_op.pending_decision || ': not delivered',
    jsonb_build_object('decision', p_op.pending_decision, 'attempts', v_named), p_op.open_attempts, interval '0');
END $$;

CREATE FUNCTION duly._decide(
  p_key text, p_choice text, p_reason text, p_reference text, p_evidence jsonb, p_expected_state text, p_expected_attempt int,
  p_label text, p_right text
) RETURNS duly.decided LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_op duly.operation;
  v_kind duly.kind;
  v_now timestamptz;
  v_effective timestamptz;
  v_refusal text;
  v_id bigint;
  v_who text := session_user || coalesce(' (' || p_label || ')', '');
BEGIN
  IF p_choice IS NULL OR p_choice NOT IN ('delivered', 'not delivered', 'abandon') THEN
    PERFORM duly._refuse('choice ' || coalesce(quote_literal(p_choice), 'NULL') || ' is not known', 'One of: delivered, not delivered, abandon.');
  ELSIF coalesce(length(trim(p_reason)), 0) < 5 THEN
    PERFORM duly._refuse('reason for deciding on ' || coalesce(p_key, 'NULL') || ' is missing or too short', 'Say in a few words how you know; it is kept.');
  ELSIF p_choice = 'delivered' AND coalesce(trim(p_reference), '') = '' AND p_evidence IS NULL THEN
    PERFORM duly._refuse('reference for ' || coalesce(p_key, 'NULL') || ' is missing', 'Give the provider''s reference of the effect, or evidence.');
  END IF;
  v_op := duly._lock(p_key);
  IF v_op.key IS NULL THEN
    PERFORM duly._refuse('key ' || coalesce(quote_literal(p_key), 'NULL') || ' is not in the ledger', 'See "duly list".', 'P0002');
  END IF;
  v_now := duly.now();
  SELECT * INTO v_kind FROM duly.kind k WHERE k.name = v_op.kind;
  v_refusal := CASE
    WHEN v_op.ended_at IS NOT NULL THEN 'it ended as ' || v_op.state || coalesce(' (settled by ' || v_op.settled_by || ')', '')
      || ' at ' || duly._utc(v_op.ended_at)
    WHEN v_op.state <> coalesce(p_expected_state, v_op.state) OR v_op.attempts <> coalesce(p_expected_attempt, v_op.attempts)
      THEN 'it moved on since you read it: now ' || v_op.state || ', attempt ' || v_op.attempts
    WHEN v_op.state = 'calling' THEN 'attempt ' || v_op.attempts || ' is in flight until ' || duly._utc(v_op.lease_until) || '; decide after that'
    WHEN v_op.state = 'scheduled' THEN 'nothing is in doubt: it is scheduled; use cancel or reschedule'
    WHEN v_op.pending_decision IS NOT NULL AND p_choice = 'not delivered' THEN 'decision ' || v_op.pending_decision || ' says so already'
    WHEN p_choice = 'delivered' AND v_op.state NOT IN ('unknown', 'accepted') THEN 'nothing was sent: it is ' || v_op.state
    WHEN p_choice = 'not delivered' AND v_op.state <> 'unknown' THEN 'it is ' || v_op.state || ', not unknown'
  END;
  IF v_refusal IS NOT NULL THEN
    INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at)
      VALUES (p_key, nullif(v_op.attempts, 0), 'refused decision', p_choice,
        jsonb_strip_nulls(jsonb_build_object('reason', p_reason, 'reference', p_reference, 'right', p_right, 'refusal', v_refusal)), v_who, v_now);
    RETURN (p_key, false, NULL, v_op.state, NULL, 'refused: ' || v_refusal)::duly.decided;
  END IF;

  -- "Not delivered" is believed only when no request of the last attempt can still be under way.
  v_effective := CASE WHEN p_choice = 'not delivered' THEN greatest(v_now, (
      SELECT max(a.send_before) + v_kind.settle FROM duly.attempt a WHERE a.key = p_key AND a.resolved_at IS NULL))
    ELSE v_now END;
  INSERT INTO duly.decision (key, choice, reason, reference, evidence, state_seen, attempt_seen, by_right, label, at, effective_at)
    VALUES (p_key, p_choice, p_reason, p_reference, p_evidence, v_op.state, v_op.attempts, p_right, p_label, v_now, v_effective)
    RETURNING id INTO v_id;
  IF p_choice = 'delivered' THEN
    -- Which of several open attempts had the effect, nobody says.
    UPDATE duly.attempt a SET resolved_at = v_now, resolved_by = 'decision ' || v_id, effect = CASE v_op.open_attempts WHEN 1 THEN true END
      WHERE a.key = p_key AND a.resolved_at IS NULL;
    PERFORM duly._move(v_op, 'delivered', v_who, 'decision ' || v_id || ': ' || p_reason, jsonb_build_object('decision', v_id),
      p_settled_by => 'person', p_reference => p_reference);
  ELSIF p_choice = 'abandon' THEN
    PERFORM duly._move(v_op, 'abandoned', v_who, 'decision ' || v_id || ': ' || p_reason, jsonb_build_object('decision', v_id));
  ELSE
    UPDATE duly.operation o SET pending_decision = v_id, pending_at = v_effective, wake_at = v_now WHERE o.key = p_key
      RETURNING * INTO v_op;
    IF v_effective <= v_now THEN
      PERFORM duly._apply_not_delivered(v_op, v_who);
    ELSE
      INSERT INTO duly.history (key, at, before, after, who, why, attempt, detail) VALUES (p_key, v_now, v_op.state, v_op.state, v_who,
        'decision ' || v_id || ': not delivered, effective ' || duly._utc(v_effective), v_op.attempts, jsonb_build_object('decision', v_id));
    END IF;
  END IF;
  SELECT * INTO v_op FROM duly.operation o WHERE o.key = p_key;
  RETURN (p_key, true, v_id, v_op.state, duly._utc(v_effective), CASE
    WHEN v_op.pending_decision = v_id THEN 'recorded; effective ' || duly._utc(v_effective) || ', when no request can still be under way'
    ELSE 'recorded; it is now ' || v_op.state END)::duly.decided;
END $$;

-- For people, by their own database login. expected_state and expected_attempt: what they saw when they decided.
CREATE FUNCTION duly.decide(
  key text, choice text, reason text, reference text DEFAULT NULL, evidence jsonb DEFAULT NULL,
  expected_state text DEFAULT NULL, expected_attempt int DEFAULT NULL, label text DEFAULT NULL
) RETURNS duly.decided LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT duly._decide(key, choice, reason, reference, evidence, expected_state, expected_attempt, label,
    CASE WHEN pg_has_role(session_user, 'duly_owner', 'MEMBER') THEN 'owner' ELSE 'operator' END);
$$;

-- What arrived by a bare Temporal signal or update. Choices that send nothing are decisions with the right "temporal";
-- every other choice is a proposal, kept as evidence until an operator decides.
CREATE FUNCTION duly.decide_by_temporal(
  p_key text, p_choice text, p_reason text, p_reference text, p_raw jsonb, p_label text, p_who text
) RETURNS duly.decided LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_op duly.operation;
  v_problem text;
BEGIN
  IF p_choice IN ('delivered', 'abandon') THEN
    BEGIN
      RETURN duly._decide(p_key, p_choice, p_reason, p_reference, CASE WHEN coalesce(p_reference, '') = '' THEN NULL ELSE p_raw END,
        NULL, NULL, p_label, 'temporal');
    EXCEPTION WHEN invalid_parameter_value OR no_data_found THEN
      v_problem := SQLERRM;
    END;
  END IF;
  v_op := duly._lock(p_key);
  IF v_op.key IS NULL THEN
    RETURN (p_key, false, NULL, NULL, NULL, 'refused: the ledger does not know this key')::duly.decided;
  END IF;
  INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at)
    VALUES (p_key, nullif(v_op.attempts, 0), CASE WHEN p_choice = 'not delivered' THEN 'proposal' ELSE 'signal' END,
      -- As received: jsonb_strip_nulls would reach into it.
      coalesce(p_choice, 'unreadable'), jsonb_build_object('received', p_raw)
        || CASE WHEN v_problem IS NULL THEN '{}' ELSE jsonb_build_object('problem', v_problem) END,
      p_who || coalesce(' for ' || p_label, ''), duly.now());
  RETURN (p_key, false, NULL, v_op.state, NULL, CASE WHEN p_choice = 'not delivered'
    THEN 'kept as a proposal: an operator confirms it with "duly resolve ' || p_key || ' --not-delivered"'
    ELSE 'kept as evidence, nothing decided: ' || coalesce(v_problem, 'send {"choice": "delivered" or "abandon", "reason": ..., "reference": ...}') END)::duly.decided;
END $$;

-- Lets a held or throttled connection work again and wakes what waits for it.
CREATE FUNCTION duly.release_connection(name text, reason text) RETURNS duly.answer
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_connection duly.connection;
BEGIN
  IF coalesce(length(trim(release_connection.reason)), 0) < 5 THEN
    PERFORM duly._refuse('reason for releasing ' || coalesce(release_connection.name, 'NULL') || ' is missing or too short', 'Say what was mended.');
  END IF;
  SELECT * INTO v_connection FROM duly.connection c WHERE c.name = release_connection.name FOR UPDATE;
  IF NOT FOUND THEN
    PERFORM duly._refuse('connection ' || coalesce(quote_literal(release_connection.name), 'NULL') || ' is not known', 'See duly.toml.', 'P0002');
  ELSIF v_connection.held IS NULL AND coalesce(v_connection.not_before, '-infinity') <= duly.now() THEN
    RETURN (v_connection.name, 'open', false, 'it was neither held nor throttled')::duly.answer;
  END IF;
  UPDATE duly.connection c SET held = NULL, held_at = NULL, not_before = NULL WHERE c.name = v_connection.name;
  -- A row that somebody works on is skipped, so that nobody waits in the other order: a claim reads the connection
  -- again under its lock before it decides to wait, so it sees this release.
  WITH waiting AS MATERIALIZED (
    SELECT o.key FROM duly.operation o WHERE o.state = 'scheduled' AND o.waiting_for IN
      ('connection ' || v_connection.name || ' is held', 'connection ' || v_connection.name || ' is throttled')
    FOR UPDATE SKIP LOCKED),
  woken AS (
    UPDATE duly.operation o SET wake_at = duly.now(), waiting_for = NULL FROM waiting w WHERE o.key = w.key
    RETURNING o.key, o.state, o.attempts)
  INSERT INTO duly.history (key, at, before, after, who, why, attempt)
    SELECT w.key, duly.now(), w.state, w.state, session_user,
      'connection ' || v_connection.name || ' released: ' || release_connection.reason, nullif(w.attempts, 0) FROM woken w;
  RETURN (v_connection.name, 'open', true, 'released')::duly.answer;
END $$;
