-- Record: what an attempt proved, and the next step, in one transaction, guarded by attempt and token.
-- A reply settles its own attempt whenever it arrives. refused names why a write was not made; that is an answer.

CREATE FUNCTION duly.record(
  p_key text, p_attempt int, p_token uuid, p_outcome text, p_sent boolean, p_status int, p_reference text, p_detail text,
  p_digest text, p_call_ms double precision, p_delay_ms bigint, p_who text
) RETURNS duly.step LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_op duly.operation;
  v_attempt duly.attempt;
  v_rule duly.rule;
  v_kind duly.kind;
  v_now timestamptz;
  v_then text;
  v_no_effect boolean;                             -- this outcome proves that the attempt had no effect
  v_resolved int := 0;
  v_step duly.step;
  v_why text;
BEGIN
  v_op := duly._lock(p_key);
  v_now := duly.now();
  SELECT * INTO v_rule FROM duly.rule r WHERE r.outcome = p_outcome;
  IF NOT FOUND THEN
    PERFORM duly._refuse('outcome ' || coalesce(quote_literal(p_outcome), 'NULL') || ' is not one of the closed list', 'See "duly retry-table".');
  END IF;
  SELECT * INTO v_attempt FROM duly.attempt a WHERE a.key = p_key AND a.number = p_attempt;
  IF NOT FOUND THEN
    -- Proof that the ledger lost rows: a claim was committed and is not here.
    v_step := duly._step_ended('the ledger lost this attempt');
    v_step.refused := 'the ledger has no attempt ' || p_attempt || ' of this key';
    IF v_op.key IS NOT NULL THEN
      INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at)
        VALUES (p_key, p_attempt, 'reply', p_outcome, jsonb_build_object('lost_attempt', true, 'reference', p_reference, 'status', p_status), p_who, v_now);
    END IF;
    RETURN v_step;
  ELSIF v_attempt.token <> p_token THEN
    v_step := duly._arm(p_key);
    v_step.refused := 'another claim owns attempt ' || p_attempt;
    RETURN v_step;
  ELSIF v_attempt.outcome IS NOT NULL AND (v_attempt.outcome <> 'unknown' OR v_rule."then" = 'unknown') THEN
    v_step := duly._arm(p_key);
    v_step.refused := 'attempt ' || p_attempt || ' is on record as ' || v_attempt.outcome;
    RETURN v_step;
  END IF;

  v_then := CASE WHEN p_outcome = 'defect' AND p_sent THEN 'unknown' ELSE v_rule."then" END;
  v_no_effect := v_then IN ('again', 'block') OR v_rule.ends_as = 'rejected';
  UPDATE duly.attempt a SET outcome = p_outcome, recorded_at = v_now, sent = p_sent, status_code = p_status,
    provider_reference = p_reference, detail = p_detail, request_digest = p_digest, call_ms = p_call_ms,
    resolved_at = CASE WHEN v_then IN ('unknown', 'accepted') THEN a.resolved_at ELSE coalesce(a.resolved_at, v_now) END,
    resolved_by = CASE WHEN v_then IN ('unknown', 'accepted') THEN a.resolved_by ELSE coalesce(a.resolved_by, 'reply') END
    WHERE a.key = p_key AND a.number = p_attempt;
  IF v_attempt.outcome = 'unknown' OR v_op.attempts <> p_attempt OR v_op.state <> 'calling' THEN
    INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at)
      VALUES (p_key, p_attempt, 'late reply', p_outcome, jsonb_strip_nulls(jsonb_build_object('status', p_status, 'reference', p_reference)), p_who, v_now);
  END IF;
  v_why := 'attempt ' || p_attempt || ': ' || p_outcome || coalesce(', status ' || p_status, '');
  IF v_attempt.resolved_at IS NULL AND v_then NOT IN ('unknown', 'accepted') AND v_op.ended_at IS NULL THEN
    v_resolved := 1;
  END IF;

  IF v_op.ended_at IS NOT NULL OR (v_op.state = 'calling' AND v_op.attempts > p_attempt)
     OR (v_op.state = 'scheduled' AND p_outcome <> 'delivered') OR v_op.state = 'blocked' THEN
    -- The operation moved on without this reply: it is evidence. It may contradict what was concluded.
    UPDATE duly.operation o SET open_attempts = o.open_attempts - v_resolved,
      contradicted = o.contradicted
        OR (p_outcome = 'delivered' AND o.state <> 'delivered' AND (o.ended_at IS NOT NULL OR v_attempt.resolved_at IS NOT NULL))
        OR (v_no_effect AND o.state = 'delivered' AND o.attempts = 1)
      WHERE o.key = p_key;
    v_step := duly._arm(p_key);
    v_step.refused := 'kept as evidence: the operation is ' || v_op.state;
    RETURN v_step;
  END IF;

  UPDATE duly.operation o SET spent = o.spent + v_rule.counts::int WHERE o.key = p_key AND v_attempt.outcome IS NULL
    RETURNING * INTO v_op;
  IF NOT FOUND THEN
    v_op := duly._lock(p_key);
  END IF;
  SELECT * INTO v_kind FROM duly.kind k WHERE k.name = v_op.kind;
  IF p_outcome = 'denied' THEN
    UPDATE duly.connection c SET held = coalesce(c.held, left('denied: ' || coalesce(p_detail, 'status ' || p_status), 500)),
      held_at = coalesce(c.held_at, v_now) WHERE c.name = v_kind.connection;
  ELSIF p_outcome = 'throttled' THEN
    UPDATE duly.connection c SET not_before = greatest(c.not_before, v_now + p_delay_ms * interval '1 millisecond')
      WHERE c.name = v_kind.connection;
  END IF;

  IF p_outcome = 'delivered' THEN
    UPDATE duly.attempt a SET resolved_at = v_now, resolved_by = 'the reply to attempt ' || p_attempt
      WHERE a.key = p_key AND a.resolved_at IS NULL;
    PERFORM duly._move(v_op, 'delivered', p_who, v_why, p_settled_by => 'reply', p_reference => p_reference);
  ELSIF v_op.open_attempts - v_resolved > 0 AND v_then <> 'accepted' THEN
    -- An attempt is still in doubt, this one or an earlier one: nothing that happened since may hide it.
    IF v_op.state = 'unknown' THEN
      UPDATE duly.operation o SET open_attempts = o.open_attempts - v_resolved WHERE o.key = p_key;
    ELSE
      PERFORM duly._move(v_op, 'unknown', p_who, v_why, p_resolved => v_resolved, p_wake_at => v_now);
    END IF;
  ELSIF v_then = 'accepted' THEN
    UPDATE duly.operation o SET lease_until = v_now + v_kind.accepted_bound WHERE o.key = p_key;
    PERFORM duly._move(v_op, 'accepted', p_who, v_why, p_reference => p_reference, p_wake_at => v_now);
  ELSIF v_then = 'end' THEN
    PERFORM duly._move(v_op, v_rule.ends_as, p_who, v_why, NULL, v_resolved);
  ELSIF v_then = 'block' THEN
    PERFORM duly._move(v_op, 'blocked', p_who, v_why, NULL, v_resolved);
  ELSE
    PERFORM duly._again(v_op, p_who, v_why, NULL, v_resolved, p_delay_ms * interval '1 millisecond', v_op.spent);
  END IF;
  RETURN duly._arm(p_key);
END $$;
