-- Replay: a bulk decision is a plan first, made of exact keys as they stood, and applied exactly, item by item.

CREATE TYPE duly.planned AS (
  plan bigint, key text, kind text, state text, attempts int, generation int, evidence text, consequence text, possible boolean);

-- What the choice would do to this operation now.
CREATE FUNCTION duly._consequence(p_op duly.operation, p_choice text, p_deadline timestamptz, OUT consequence text, OUT possible boolean)
  LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_choice duly.choice;
  v_refusal text;
BEGIN
  SELECT * INTO v_choice FROM duly.choice c WHERE c.name = p_choice;
  v_refusal := duly._refusal(p_op, v_choice, duly._right(), NULL, NULL, p_deadline, NULL);
  possible := v_refusal IS NULL;
  consequence := CASE WHEN v_refusal IS NOT NULL THEN 'refused: ' || v_refusal
    WHEN p_choice = 'reopen' THEN 'generation ' || p_op.generation + 1 || ', attempt ' || p_op.attempts + 1
      || ', same idempotency key, before ' || duly._utc(coalesce(p_deadline, p_op.deadline))
    ELSE 'attempt ' || p_op.attempts + 1 || ', same idempotency key, before ' || duly._utc(p_op.deadline) END
    || CASE WHEN v_refusal IS NULL AND (SELECT k.second_person FROM duly.kind k WHERE k.name = p_op.kind)
         THEN '; a second person must approve' ELSE '' END;
END $$;

-- What is known of the effect: the newest evidence from outside, else what the last attempt proved.
CREATE FUNCTION duly._evidence_seen(p_op duly.operation) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(
    (SELECT 'evidence ' || e.id || ', ' || e.source || ': ' || e.finding FROM duly.evidence e
      WHERE e.key = p_op.key AND e.source <> 'refused decision' ORDER BY e.id DESC LIMIT 1),
    (SELECT 'attempt ' || a.number || ': ' || coalesce(a.outcome, 'in flight') || coalesce(', status ' || a.status_code, '') FROM duly.attempt a
      WHERE a.key = p_op.key ORDER BY a.number DESC LIMIT 1),
    'never sent');
$$;

-- What would be planned: nothing is written. Exact keys, or what matches; oldest first, at most limit_to.
CREATE FUNCTION duly.preview_plan(
  keys text[], states text[], kind text, older_than interval, limit_to int, deadline timestamptz DEFAULT NULL
) RETURNS SETOF duly.planned LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_unknown text;
BEGIN
  IF limit_to IS NULL OR limit_to NOT BETWEEN 1 AND 10000 THEN
    PERFORM duly._refuse('limit ' || coalesce(limit_to::text, 'NULL') || ' is not within 1 to 10000', 'A replay is bounded.');
  ELSIF preview_plan.keys IS NULL AND preview_plan.states IS NULL THEN
    PERFORM duly._refuse('neither keys nor a state is given', 'Name the keys, or a state of the dead list: rejected, expired, exhausted, blocked.');
  ELSIF NOT coalesce(preview_plan.states, '{}') <@ ARRAY['rejected', 'expired', 'exhausted', 'blocked'] THEN
    PERFORM duly._refuse('state ' || array_to_string(preview_plan.states, ', ') || ' is not on the dead list', 'One of: rejected, expired, exhausted, blocked.');
  END IF;
  SELECT string_agg(k, ', ') INTO v_unknown FROM unnest(preview_plan.keys) k WHERE NOT EXISTS (SELECT FROM duly.operation o WHERE o.key = k);
  IF v_unknown IS NOT NULL THEN
    PERFORM duly._refuse('key ' || v_unknown || ' is not in the ledger', 'See "duly dead".', 'P0002');
  END IF;
  RETURN QUERY SELECT NULL::bigint, o.key, o.kind, o.state::text, o.attempts, o.generation,
      duly._evidence_seen(o), c.consequence, c.possible
    FROM duly.operation o,
      LATERAL duly._consequence(o, CASE WHEN o.state = 'blocked' THEN 'release' ELSE 'reopen' END, preview_plan.deadline) c
    WHERE (preview_plan.keys IS NULL OR o.key = ANY (preview_plan.keys))
      AND (preview_plan.states IS NULL OR o.state = ANY (preview_plan.states))
      AND (preview_plan.kind IS NULL OR o.kind = preview_plan.kind)
      AND (older_than IS NULL OR o.state_since <= duly.now() - older_than)
    ORDER BY o.state_since, o.key LIMIT limit_to;
END $$;

-- The same, frozen as a plan. Refused items are in it, so that the account is complete; they are never applied.
CREATE FUNCTION duly.make_plan(
  keys text[], states text[], kind text, older_than interval, limit_to int, reason text, deadline timestamptz DEFAULT NULL
) RETURNS SETOF duly.planned LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_plan bigint;
BEGIN
  IF coalesce(length(trim(make_plan.reason)), 0) < 5 THEN
    PERFORM duly._refuse('reason for the plan is missing or too short', 'Say in a few words why these may be sent; it is kept with each.');
  END IF;
  INSERT INTO duly.plan (choice, reason, deadline, selection, at) VALUES ('replay', make_plan.reason, make_plan.deadline,
      jsonb_strip_nulls(jsonb_build_object('keys', make_plan.keys, 'states', make_plan.states, 'kind', make_plan.kind,
        'older_than', older_than::text, 'limit', limit_to)), duly.now())
    RETURNING id INTO v_plan;
  RETURN QUERY
    WITH item AS (
      INSERT INTO duly.plan_item (plan, key, state_seen, attempt_seen, generation_seen, evidence_seen, consequence)
        SELECT v_plan, p.key, p.state, p.attempts, p.generation, p.evidence, p.consequence
        FROM duly.preview_plan(make_plan.keys, make_plan.states, make_plan.kind, make_plan.older_than, limit_to, make_plan.deadline) p
        RETURNING *)
    SELECT i.plan, i.key, o.kind, i.state_seen, i.attempt_seen, i.generation_seen, i.evidence_seen, i.consequence,
        NOT starts_with(i.consequence, 'refused')
      FROM item i JOIN duly.operation o ON o.key = i.key ORDER BY i.key;
END $$;

CREATE TYPE duly.plan_applied AS (key text, done boolean, answer text);

-- The next items of a plan, each under its own guard: what moved since is skipped and reported. Call it until it returns
-- nothing; an interrupted plan goes on where it stopped, and pressing twice changes nothing.
CREATE FUNCTION duly.apply_plan(plan bigint, limit_to int) RETURNS SETOF duly.plan_applied
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_plan duly.plan;
  v_item duly.plan_item;
  v_op duly.operation;
  v_decided duly.decided;
  v_result duly.plan_applied;
  v_done int;
  v_start timestamptz;
BEGIN
  SELECT * INTO v_plan FROM duly.plan p WHERE p.id = apply_plan.plan FOR UPDATE;
  IF NOT FOUND THEN
    PERFORM duly._refuse('plan ' || coalesce(apply_plan.plan::text, 'NULL') || ' is not in the ledger', 'See "duly plan".', 'P0002');
  END IF;
  SELECT count(*), coalesce(min(r.at), duly.now()) INTO v_done, v_start FROM duly.plan_result r WHERE r.plan = v_plan.id AND r.done;
  FOR v_item IN SELECT i.* FROM duly.plan_item i WHERE i.plan = v_plan.id
      AND NOT EXISTS (SELECT FROM duly.plan_result r WHERE r.plan = i.plan AND r.key = i.key) ORDER BY i.key LIMIT limit_to LOOP
    v_op := duly._lock(v_item.key);
    IF v_op.generation <> v_item.generation_seen THEN
      v_decided := (v_item.key, false, NULL, v_op.state, NULL, 'skipped: it was opened again since, generation ' || v_op.generation)::duly.decided;
    ELSIF duly._evidence_seen(v_op) <> v_item.evidence_seen AND v_op.state = v_item.state_seen THEN
      v_decided := (v_item.key, false, NULL, v_op.state, NULL, 'skipped: new evidence since, ' || duly._evidence_seen(v_op))::duly.decided;
    ELSIF starts_with(v_item.consequence, 'refused') THEN
      v_decided := (v_item.key, false, NULL, v_op.state, NULL, v_item.consequence)::duly.decided;
    ELSE
      v_decided := duly._decide(v_item.key, CASE WHEN v_item.state_seen = 'blocked' THEN 'release' ELSE 'reopen' END,
        v_plan.reason || ' (plan ' || v_plan.id || ')', NULL, NULL, v_item.state_seen, v_item.attempt_seen, 'plan ' || v_plan.id,
        duly._right(), CASE WHEN v_item.state_seen <> 'blocked' THEN v_plan.deadline END, NULL);
      IF v_decided.accepted THEN
        -- Spread out, fifty a second, so that a replay of a thousand is not a burst.
        UPDATE duly.operation o SET wake_at = greatest(duly.now(), v_start + v_done * interval '20 milliseconds')
          WHERE o.key = v_item.key AND o.state = 'scheduled';
        v_done := v_done + 1;
      END IF;
    END IF;
    INSERT INTO duly.plan_result (plan, key, done, answer, decision, at)
      VALUES (v_plan.id, v_item.key, v_decided.accepted, v_decided.answer, v_decided.decision, duly.now());
    v_result := (v_item.key, v_decided.accepted, v_decided.answer)::duly.plan_applied;
    RETURN NEXT v_result;
  END LOOP;
END $$;
