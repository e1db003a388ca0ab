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
  v_late boolean;                                  -- the operation did not wait for this reply any more
  v_newer boolean;                                 -- a newer attempt is in flight
  v_contradicts boolean;
  v_resolved int := 0;                             -- open attempts that this reply settles; -1: it opens one again
  v_step duly.step;
  v_why text;
  -- A provider's hint may be junk: a year is beyond any use, and far from what a time can hold.
  v_delay interval := least(greatest(coalesce(p_delay_ms, 0), 0), 31536000000) * interval '1 millisecond';
BEGIN
  v_op := duly._lock(p_key);
  v_now := duly.now();
  SELECT * INTO v_rule FROM duly.rule r WHERE r.outcome = p_outcome;
  IF NOT FOUND THEN
    PERFORM duly._refuse('outcome ' || coalesce(quote_literal(p_outcome), 'NULL') || ' is not one of the closed list', 'See "duly retry-table".');
  END IF;
  SELECT * INTO v_attempt FROM duly.attempt a WHERE a.key = p_key AND a.number = p_attempt;
  IF NOT FOUND OR (v_attempt.token IS DISTINCT FROM p_token AND v_attempt.scope = 'unknown') THEN
    -- Proof that the ledger lost rows: a claim was committed and is not here, or a stand-in holds its number. Unless an
    -- owner has adopted the ledger since that stand-in was made: then the loss is known.
    IF NOT EXISTS (SELECT FROM duly.attempt a, duly.adoption d WHERE a.key = p_key AND a.scope = 'unknown' AND d.at >= a.claimed_at) THEN
      PERFORM duly.quarantine('the ledger lost attempt ' || p_attempt || ' of ' || p_key || ': its reply came and its claim is not here', p_who);
    END IF;
  END IF;
  -- The stand-in may stand for more than this reply can settle; only "delivered" settles it all.
  IF v_attempt.key IS NULL OR (v_attempt.token IS DISTINCT FROM p_token AND v_attempt.scope = 'unknown' AND p_outcome <> 'delivered') THEN
    v_step := duly._step_ended('the ledger lost this attempt');
    v_step.refused := concat('the ledger has no attempt ', p_attempt, ' of this key');
    IF v_op.key IS NOT NULL THEN
      INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at)
        VALUES (p_key, p_attempt, 'reply', p_outcome, jsonb_build_object('lost_attempt', true, 'reference', p_reference, 'status', p_status), p_who, v_now);
    END IF;
    RETURN v_step;
  END IF;
  v_step := duly._next(v_op, v_now);
  IF v_attempt.token IS DISTINCT FROM p_token AND v_attempt.scope <> 'unknown' THEN
    v_step.refused := 'another claim owns attempt ' || p_attempt;
    RETURN v_step;
  ELSIF v_attempt.outcome <> 'unknown' OR (v_attempt.outcome = 'unknown' AND v_attempt.sent IS NOT NULL AND v_rule."then" = 'unknown') THEN
    -- "unknown" without "sent" was assumed when the lease ended; a reply of its own replaces it.
    v_step.refused := 'attempt ' || p_attempt || ' is on record as ' || v_attempt.outcome;
    RETURN v_step;
  END IF;

  -- Of our own words for "nothing left" none is believed if bytes left.
  v_then := CASE WHEN p_outcome IN ('not_sent', 'invalid', 'defect') AND coalesce(p_sent, true) THEN 'unknown' ELSE v_rule."then" END;
  v_no_effect := v_then IN ('again', 'block') OR (v_then = 'end' AND v_rule.ends_as = 'rejected');
  v_late := v_attempt.outcome IS NOT NULL OR v_op.attempts <> p_attempt OR v_op.state <> 'calling';
  v_newer := v_op.attempts > p_attempt AND v_op.state IN ('calling', 'accepted');
  v_why := 'attempt ' || p_attempt || ': ' || p_outcome || coalesce(', status ' || p_status, '');
  IF v_attempt.resolved_at IS NULL AND v_then NOT IN ('unknown', 'accepted') THEN
    v_resolved := 1;
  ELSIF v_attempt.resolved_at IS NOT NULL AND v_then = 'accepted' AND v_op.ended_at IS NULL THEN
    v_resolved := -1;                              -- believed to be without effect; now the provider works on it
  END IF;
  UPDATE duly.attempt a SET outcome = p_outcome, recorded_at = v_now, sent = coalesce(p_sent, true), status_code = p_status,
    provider_reference = p_reference, detail = p_detail, request_digest = p_digest, call_ms = p_call_ms,
    resolved_at = CASE v_resolved WHEN 1 THEN v_now WHEN 0 THEN a.resolved_at END,
    resolved_by = CASE v_resolved WHEN 1 THEN 'reply' WHEN 0 THEN a.resolved_by END,
    effect = CASE WHEN p_outcome = 'delivered' THEN true WHEN v_no_effect THEN false WHEN v_resolved = 0 THEN a.effect END
    WHERE a.key = p_key AND a.number = p_attempt;
  IF v_late THEN
    INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at)
      VALUES (p_key, p_attempt, 'late reply', p_outcome, jsonb_strip_nulls(jsonb_build_object('status', p_status, 'reference', p_reference)), p_who, v_now);
  END IF;
  -- It contradicts an ending, or a belief on which a repeat was sent; or it is a second effect; or nothing is left
  -- that could have had the effect.
  v_contradicts := CASE WHEN p_outcome IN ('delivered', 'accepted') THEN
      (v_op.ended_at IS NOT NULL AND v_op.state <> 'delivered')
      OR (v_attempt.effect IS NOT DISTINCT FROM false AND v_op.attempts > p_attempt)
      OR EXISTS (SELECT FROM duly.attempt a WHERE a.key = p_key AND a.number <> p_attempt AND a.effect
                 AND (a.provider_reference = p_reference) IS NOT TRUE)
    ELSE v_no_effect AND v_op.state = 'delivered'
      AND NOT EXISTS (SELECT FROM duly.attempt a WHERE a.key = p_key AND a.effect IS DISTINCT FROM false) END;
  UPDATE duly.operation o SET contradicted = o.contradicted OR v_contradicts,
    -- An attempt of before a reopening or a new epoch is not counted any more.
    spent = o.spent + CASE WHEN (v_attempt.generation, v_attempt.epoch) = (o.generation, o.epoch)
      THEN (v_rule.counts OR v_then = 'unknown')::int - (v_attempt.outcome IS NOT NULL)::int ELSE 0 END
    WHERE o.key = p_key RETURNING * INTO v_op;

  IF v_op.ended_at IS NOT NULL OR v_newer
     OR (v_op.state IN ('scheduled', 'blocked') AND p_outcome NOT IN ('delivered', 'accepted')) THEN
    -- The operation moved on without this reply: it is evidence.
    UPDATE duly.operation o SET open_attempts = o.open_attempts - v_resolved WHERE o.key = p_key;
    v_step.refused := 'kept as evidence: the operation is ' || v_op.state;
    RETURN v_step;
  END IF;

  SELECT * INTO v_kind FROM duly.kind k WHERE k.name = v_op.kind;
  IF p_outcome = 'denied' THEN
    UPDATE duly.connection c SET held = coalesce(c.held, left('denied: ' || coalesce(p_detail, 'status ' || p_status, 'no detail'), 500)),
      held_at = coalesce(c.held_at, v_now) WHERE c.name = v_kind.connection;
  ELSIF p_outcome = 'throttled' THEN
    UPDATE duly.connection c SET not_before = greatest(c.not_before, v_now + v_delay) WHERE c.name = v_kind.connection;
  END IF;

  IF p_outcome = 'delivered' THEN
    UPDATE duly.attempt a SET resolved_at = v_now, resolved_by = 'the reply to attempt ' || p_attempt
      WHERE a.key = p_key AND a.resolved_at IS NULL;
    PERFORM duly._move(v_op, 'delivered', p_who, v_why, p_settled_by => 'reply', p_reference => p_reference);
  ELSIF v_then = 'accepted' THEN
    UPDATE duly.operation o SET lease_until = v_now + v_kind.accepted_bound WHERE o.key = p_key;
    PERFORM duly._move(v_op, 'accepted', p_who, v_why, p_resolved => v_resolved, p_reference => p_reference, p_wake_at => v_now);
  ELSIF v_op.open_attempts > v_resolved THEN
    -- An attempt is still in doubt, this one or an earlier one: nothing that happened since may hide it.
    IF v_op.state = 'unknown' THEN
      UPDATE duly.operation o SET open_attempts = o.open_attempts - v_resolved WHERE o.key = p_key;
      RETURN v_step;
    END IF;
    PERFORM duly._move(v_op, 'unknown', p_who, v_why, p_resolved => v_resolved, p_wake_at => v_now);
  ELSE
    PERFORM duly._without_effect(v_op, p_who, v_why, NULL, v_resolved, v_delay,
      CASE v_then WHEN 'end' THEN 'rejected' WHEN 'block' THEN 'blocked' ELSE 'scheduled' END);
  END IF;
  IF NOT v_late THEN
    RETURN duly._arm(p_key);
  END IF;
  -- Its workflow may be told by nobody: the sweep looks at once.
  UPDATE duly.operation o SET wake_at = v_now WHERE o.key = p_key AND o.ended_at IS NULL;
  SELECT * INTO v_op FROM duly.operation o WHERE o.key = p_key;
  RETURN duly._next(v_op, v_now);
END $$;
