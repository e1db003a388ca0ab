-- Look-ups: what to ask about a doubt, and what an answer leads to. reconcile/unknown.py judges; this enforces.

CREATE TYPE duly.question AS (
  act text, attempt int, delay_ms bigint, state text, reason text, generation int,
  kind text, connection text, idempotency_keys text[], reference text, payload jsonb, call_limit_ms bigint,
  settled boolean, conclusive boolean, lag_s double precision, absent_since_s double precision,
  canary_key text, canary_idempotency_keys text[], canary_reference text, canary_payload jsonb);

-- From when on an absence may count: no request of any attempt can still be under way, nor of one that a restored ledger
-- has forgotten.
CREATE FUNCTION duly._settled_at(p_op duly.operation) RETURNS timestamptz
  LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT greatest(max(a.send_before), max(l.quarantined_at), max(g.until)) + k.settle
    FROM duly.attempt a, duly.kind k, duly.ledger l, (SELECT max(d.quarantined_at) AS until FROM duly.adoption d) g
    WHERE a.key = p_op.key AND k.name = p_op.kind GROUP BY k.settle;
$$;

-- When the first absence that counts was seen, in this doubt and since anything else than absence; NULL: none yet.
CREATE FUNCTION duly._absent_since(p_op duly.operation) RETURNS timestamptz
  LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT min(e.at) FROM duly.evidence e WHERE e.key = p_op.key AND e.attempt = p_op.attempts AND e.source = 'look-up'
    AND e.finding = 'absent' AND (e.detail->>'counts')::boolean AND e.at >= duly._settled_at(p_op)
    AND NOT EXISTS (SELECT FROM duly.evidence f WHERE f.key = e.key AND f.id > e.id AND f.source = 'look-up'
                    AND f.finding IN ('working', 'several'));
$$;

CREATE FUNCTION duly.look_up(p_key text, p_generation int, p_worker text) RETURNS duly.question
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_step duly.step;
  v_op duly.operation;
  v_kind duly.kind;
  v_question duly.question;
  v_canary duly.operation;
  v_now timestamptz;
BEGIN
  v_step := duly.instruct(p_key, p_generation, p_worker);
  v_question.act := v_step.act;
  v_question.attempt := v_step.attempt;
  v_question.delay_ms := v_step.delay_ms;
  v_question.state := v_step.state;
  v_question.reason := v_step.reason;
  v_question.generation := v_step.generation;
  IF v_step.act <> 'look_up' OR v_step.delay_ms > 0 THEN
    RETURN v_question;
  END IF;
  v_now := duly.now();
  SELECT * INTO v_op FROM duly.operation o WHERE o.key = p_key;
  SELECT * INTO v_kind FROM duly.kind k WHERE k.name = v_op.kind;
  v_question.kind := v_op.kind;
  v_question.connection := v_kind.connection;
  v_question.reference := v_op.provider_reference;
  v_question.payload := v_op.payload;
  v_question.call_limit_ms := extract(epoch FROM v_kind.call_limit) * 1000;
  v_question.settled := v_now >= duly._settled_at(v_op);
  v_question.conclusive := v_kind.look_up_conclusive;
  v_question.lag_s := extract(epoch FROM v_kind.look_up_lag);
  v_question.absent_since_s := extract(epoch FROM v_now - duly._absent_since(v_op));
  v_question.idempotency_keys := ARRAY(SELECT a.idempotency_key FROM duly.attempt a WHERE a.key = p_key
    GROUP BY a.idempotency_key ORDER BY max(a.number) DESC);
  IF v_question.settled AND v_question.conclusive THEN
    -- The canary: delivered by reply on this connection, long enough ago to be visible, lately enough to be kept.
    SELECT o.* INTO v_canary FROM duly.operation o JOIN duly.kind k ON k.name = o.kind
      WHERE o.state = 'delivered' AND o.settled_by = 'reply' AND k.connection = v_kind.connection
        AND o.ended_at BETWEEN v_now - interval '7 days' AND v_now - coalesce(v_kind.look_up_lag, interval '0')
      ORDER BY o.ended_at DESC LIMIT 1;
    IF FOUND THEN
      v_question.canary_key := v_canary.key;
      v_question.canary_reference := v_canary.provider_reference;
      v_question.canary_payload := v_canary.payload;
      v_question.canary_idempotency_keys := ARRAY(SELECT a.idempotency_key FROM duly.attempt a WHERE a.key = v_canary.key AND a.outcome = 'delivered');
    END IF;
  END IF;
  RETURN v_question;
END $$;

-- What a look-up found, and what it permits. p_counts: an absence that meets every rule but the second one.
CREATE FUNCTION duly.found(
  p_key text, p_generation int, p_attempt int, p_finding text, p_reference text, p_detail jsonb, p_counts boolean, p_why text, p_who text
) RETURNS duly.step LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_op duly.operation;
  v_kind duly.kind;
  v_now timestamptz;
  v_id bigint;
  v_counts boolean;
  v_first timestamptz;
  v_step duly.step;
BEGIN
  IF p_finding IS NULL OR p_finding NOT IN ('applied', 'absent', 'working', 'refused', 'several', 'cannot tell') THEN
    PERFORM duly._refuse('finding ' || coalesce(quote_literal(p_finding), 'NULL') || ' is not one of the closed list', 'See provider/port.py.');
  END IF;
  v_op := duly._lock(p_key);
  IF v_op.key IS NULL OR v_op.generation <> p_generation THEN
    RETURN duly._step_ended('the ledger does not know this key and generation');
  END IF;
  v_now := duly.now();
  SELECT * INTO v_kind FROM duly.kind k WHERE k.name = v_op.kind;
  v_first := duly._absent_since(v_op);
  v_counts := p_finding = 'absent' AND coalesce(p_counts, false) AND v_kind.look_up_conclusive AND v_op.state = 'unknown'
    AND v_op.attempts = p_attempt AND v_now >= duly._settled_at(v_op);
  INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at) VALUES (p_key, p_attempt, 'look-up', p_finding,
      jsonb_strip_nulls(coalesce(p_detail, '{}') || jsonb_build_object('reference', p_reference, 'why', p_why,
        'counts', CASE WHEN p_finding = 'absent' THEN v_counts END)), p_who, v_now)
    RETURNING id INTO v_id;
  IF (v_op.state NOT IN ('unknown', 'accepted') OR v_op.attempts <> p_attempt)
     -- What is found withdraws a repeat that nobody has claimed yet, as a late reply does.
     AND NOT (p_finding = 'applied' AND v_op.state IN ('scheduled', 'blocked') AND v_op.attempts = p_attempt AND p_attempt > 0) THEN
    v_step := duly._next(v_op, v_now);
    v_step.refused := 'kept as evidence: the operation is ' || v_op.state || ', attempt ' || v_op.attempts;
    -- It contradicts an ending, or a belief on which a repeat was sent.
    UPDATE duly.operation o SET contradicted = o.contradicted OR (p_finding = 'several' AND o.ended_at IS NOT NULL)
        OR (p_finding = 'applied' AND ((o.ended_at IS NOT NULL AND o.state <> 'delivered')
          OR EXISTS (SELECT FROM duly.attempt a WHERE a.key = p_key AND a.number = p_attempt AND NOT a.effect AND o.attempts > p_attempt)))
      WHERE o.key = p_key;
    RETURN v_step;
  END IF;

  IF p_finding = 'applied' THEN
    -- Found after it was believed absent: that belief of the attempt goes.
    UPDATE duly.attempt a SET effect = CASE v_op.attempts WHEN 1 THEN true END, resolved_by = 'look-up, evidence ' || v_id
      WHERE v_op.open_attempts = 0 AND a.key = p_key AND a.number = p_attempt AND a.outcome = 'unknown';
    UPDATE duly.attempt a SET resolved_at = v_now, resolved_by = 'look-up, evidence ' || v_id, effect = CASE v_op.open_attempts WHEN 1 THEN true END
      WHERE a.key = p_key AND a.resolved_at IS NULL;
    PERFORM duly._move(v_op, 'delivered', p_who, 'a look-up found it', jsonb_build_object('evidence', v_id),
      p_settled_by => 'look-up', p_reference => p_reference);
  ELSIF p_finding = 'refused' OR (v_counts AND v_now >= v_first + v_kind.look_up_lag) THEN
    UPDATE duly.attempt a SET resolved_at = v_now, resolved_by = 'look-up, evidence ' || v_id, effect = false
      WHERE a.key = p_key AND a.resolved_at IS NULL;
    PERFORM duly._without_effect(v_op, p_who,
      CASE p_finding WHEN 'refused' THEN 'the provider finished it without effect' ELSE 'two look-ups proved it absent' END,
      jsonb_build_object('evidence', v_id), v_op.open_attempts, interval '0', CASE p_finding WHEN 'refused' THEN 'rejected' ELSE 'scheduled' END);
  ELSE
    IF p_finding = 'several' AND v_op.pending_decision IS NOT NULL THEN
      INSERT INTO duly.history (key, at, before, after, who, why, attempt, detail) VALUES (p_key, v_now, v_op.state, v_op.state, p_who,
        'a look-up found more than one effect: decision ' || v_op.pending_decision || ' is set aside', v_op.attempts,
        jsonb_build_object('evidence', v_id, 'set_aside', v_op.pending_decision));
      UPDATE duly.operation o SET pending_decision = NULL, pending_at = NULL WHERE o.key = p_key;
    END IF;
    UPDATE duly.operation o SET looked = o.looked + 1, contradicted = o.contradicted OR p_finding = 'several',
      no_repeat = CASE p_finding WHEN 'several' THEN 'a look-up found more than one effect' ELSE o.no_repeat END,
      look_at = CASE
        -- The second absence is asked for a lag after the first, not at the plan's leisure.
        WHEN v_counts THEN coalesce(v_first, v_now) + v_kind.look_up_lag
        ELSE duly._look_at(o.kind, o.looked + 1, v_now) END
      WHERE o.key = p_key;
  END IF;
  RETURN duly._arm(p_key);
END $$;
