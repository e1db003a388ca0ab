-- A person's choice is a ledger row first. The workflow is told afterwards, and if that is lost the sweep finds the row.

CREATE TYPE duly.decided AS (
  key text, accepted boolean, decision bigint, state text, effective_utc text, answer text);

-- The choices: who may make them, from which states, and whether something may be sent after them (then a kind may
-- demand a second person).
CREATE TABLE duly.choice (
  name text PRIMARY KEY,
  owner_only boolean NOT NULL,
  may_send boolean NOT NULL,
  states text[] NOT NULL
);
INSERT INTO duly.choice VALUES
  ('delivered', false, false, ARRAY['unknown', 'accepted']),
  ('not delivered', false, true, ARRAY['unknown']),
  ('new epoch', true, true, ARRAY['unknown']),
  ('abandon', false, false, ARRAY['unknown', 'accepted', 'blocked']),
  ('release', false, true, ARRAY['blocked']),
  ('extend', true, false, ARRAY['scheduled', 'blocked', 'unknown']),
  ('reopen', false, true, ARRAY['rejected', 'expired', 'exhausted']),
  ('correct', false, false, ARRAY['delivered', 'rejected', 'expired', 'exhausted', 'cancelled', 'superseded', 'ineligible', 'abandoned']);

-- The right of this session's login: owner, operator, or NULL. Never a name that a client claims.
CREATE FUNCTION duly._right() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN pg_has_role(session_user, 'duly_owner', 'MEMBER') THEN 'owner'
    WHEN pg_has_role(session_user, 'duly_operator', 'MEMBER') THEN 'operator' END;
$$;

-- Why a choice is not possible now; NULL: it is.
CREATE FUNCTION duly._refusal(
  p_op duly.operation, p_choice duly.choice, p_right text, p_expected_state text, p_expected_attempt int, p_deadline timestamptz, p_ending text
) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN CASE
    WHEN p_choice.owner_only AND p_right IN ('operator', 'temporal') THEN 'only an owner may decide "' || p_choice.name || '"'
    WHEN p_op.state <> coalesce(p_expected_state, p_op.state) OR p_op.attempts <> coalesce(p_expected_attempt, p_op.attempts)
      THEN 'it moved on since you read it: now ' || p_op.state || ', attempt ' || p_op.attempts
    WHEN p_op.ended_at IS NOT NULL AND NOT p_op.state = ANY (p_choice.states) THEN 'it ended as ' || p_op.state
      || coalesce(' (settled by ' || p_op.settled_by || ')', '') || ' at ' || duly._utc(p_op.ended_at)
    WHEN p_op.state = 'calling' THEN 'attempt ' || p_op.attempts || ' is in flight until ' || duly._utc(p_op.lease_until) || '; decide after that'
    WHEN p_op.state = 'scheduled' AND p_choice.name <> 'extend' THEN 'nothing is in doubt: it is scheduled; use cancel or reschedule'
    WHEN p_op.pending_decision IS NOT NULL AND p_choice.name = 'not delivered' THEN 'decision ' || p_op.pending_decision || ' says so already'
    WHEN NOT p_op.state = ANY (p_choice.states) THEN 'it is ' || p_op.state || '; "' || p_choice.name || '" is for ' || array_to_string(p_choice.states, ', ')
    WHEN p_choice.name = 'extend' AND p_deadline <= p_op.deadline THEN 'its deadline is ' || duly._utc(p_op.deadline) || ' already'
    WHEN p_choice.name IN ('extend', 'reopen') AND p_deadline <= duly.now() THEN 'the deadline ' || duly._utc(p_deadline) || ' has passed already'
    WHEN p_choice.name = 'reopen' AND p_deadline <= p_op.due_at THEN 'the deadline ' || duly._utc(p_deadline) || ' is not after its due time'
    -- Sent as a new effect or not at all: else the doubt would end as something that hides it.
    WHEN p_choice.name = 'new epoch' AND p_op.stop_requested IS NOT NULL THEN 'a stop was requested: ' || p_op.stop_requested
    WHEN p_choice.name IN ('new epoch', 'reopen') AND EXISTS (
      SELECT FROM duly.subject s WHERE s.subject = p_op.subject AND s.newest_version > p_op.version) THEN 'a newer version took its place'
    WHEN p_choice.name = 'new epoch' AND p_op.deadline < duly.now() + (SELECT k.call_limit FROM duly.kind k WHERE k.name = p_op.kind)
      THEN 'no call would fit before the deadline; an owner may extend it first'
    WHEN p_choice.name IN ('reopen', 'release') AND p_op.contradicted THEN 'evidence contradicts what it stands for: correct it first'
    WHEN p_choice.name = 'reopen' AND p_op.stop_requested IS NOT NULL THEN 'a stop was requested: ' || p_op.stop_requested
    WHEN p_choice.name = 'reopen' AND p_op.deadline <= duly.now() AND p_deadline IS NULL THEN 'its deadline has passed; an owner must give a new one'
    WHEN p_choice.name = 'reopen' AND p_deadline > p_op.deadline AND p_right <> 'owner' THEN 'only an owner moves its deadline later'
    WHEN p_choice.name = 'correct' AND p_ending <> p_op.state
      AND NOT EXISTS (SELECT FROM duly.move m WHERE m.before = p_op.state AND m.after = p_ending AND m.after <> 'scheduled')
      THEN p_op.state || ' cannot be corrected to ' || p_ending
    WHEN p_choice.name = 'correct' AND p_ending = p_op.state AND NOT p_op.contradicted THEN 'nothing contradicts its ending ' || p_op.state
  END;
END $$;

CREATE FUNCTION duly._check_decision(
  p_key text, p_choice text, p_reason text, p_reference text, p_evidence jsonb, p_deadline timestamptz, p_ending text
) RETURNS duly.choice LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_choice duly.choice;
  v_key text := coalesce(p_key, 'NULL');
BEGIN
  SELECT * INTO v_choice FROM duly.choice c WHERE c.name = p_choice;
  IF NOT FOUND THEN
    PERFORM duly._refuse('choice ' || coalesce(quote_literal(p_choice), 'NULL') || ' is not known',
      'One of: ' || (SELECT string_agg(c.name, ', ' ORDER BY c.name) FROM duly.choice c) || '.');
  ELSIF coalesce(length(trim(p_reason)), 0) < 5 THEN
    PERFORM duly._refuse('reason for deciding on ' || v_key || ' is missing or too short', 'Say in a few words how you know; it is kept.');
  ELSIF p_choice = 'delivered' AND coalesce(trim(p_reference), '') = '' AND p_evidence IS NULL THEN
    PERFORM duly._refuse('reference for ' || v_key || ' is missing', 'Give the provider''s reference of the effect, or evidence.');
  ELSIF p_choice = 'extend' AND p_deadline IS NULL THEN
    PERFORM duly._refuse('deadline for ' || v_key || ' is missing', 'Say until when it may still be sent.');
  ELSIF NOT isfinite(p_deadline) THEN
    PERFORM duly._refuse('deadline for ' || v_key || ' is not a time', 'Say until when it may still be sent.');
  ELSIF p_choice = 'correct' AND (p_ending IS NULL OR p_ending NOT IN
      ('delivered', 'rejected', 'expired', 'exhausted', 'cancelled', 'superseded', 'ineligible', 'abandoned')) THEN
    PERFORM duly._refuse('ending for ' || v_key || ' is missing or not an ending', 'Say what the evidence shows: its present ending, or delivered, rejected, abandoned.');
  END IF;
  RETURN v_choice;
END $$;

CREATE FUNCTION duly._decide(
  p_key text, p_choice text, p_reason text, p_reference text, p_evidence jsonb, p_expected_state text, p_expected_attempt int,
  p_label text, p_right text, p_deadline timestamptz DEFAULT NULL, p_ending text DEFAULT NULL
) RETURNS duly.decided LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_choice duly.choice;
  v_op duly.operation;
  v_kind duly.kind;
  v_now timestamptz;
  v_effective timestamptz;
  v_refusal text;
  v_decision duly.decision;
  v_second boolean;
  v_who text := session_user || coalesce(' (' || p_label || ')', '');
BEGIN
  v_choice := duly._check_decision(p_key, p_choice, p_reason, p_reference, p_evidence, p_deadline, p_ending);
  v_op := duly._lock(p_key);
  IF v_op.key IS NULL THEN
    PERFORM duly._refuse('key ' || coalesce(quote_literal(p_key), 'NULL') || ' is not in the ledger', 'See "duly list".', 'P0002');
  END IF;
  v_now := duly.now();
  SELECT * INTO v_kind FROM duly.kind k WHERE k.name = v_op.kind;
  v_refusal := duly._refusal(v_op, v_choice, p_right, p_expected_state, p_expected_attempt, p_deadline, p_ending);
  IF v_refusal IS NOT NULL THEN
    INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at)
      VALUES (p_key, nullif(v_op.attempts, 0), 'refused decision', p_choice,
        jsonb_strip_nulls(jsonb_build_object('reason', p_reason, 'reference', p_reference, 'right', p_right, 'refusal', v_refusal)), v_who, v_now);
    RETURN (p_key, false, NULL, v_op.state, NULL, 'refused: ' || v_refusal)::duly.decided;
  END IF;

  -- "Not delivered" is believed only when no request of the last attempt can still be under way.
  v_effective := CASE WHEN p_choice = 'not delivered' THEN greatest(v_now, duly._settled_at(v_op)) ELSE v_now END;
  v_second := p_right = 'proposal' OR (v_kind.second_person AND v_choice.may_send);
  INSERT INTO duly.decision (key, choice, reason, reference, deadline, ending, evidence, state_seen, attempt_seen, by_right, needs_approval,
      label, at, effective_at)
    VALUES (p_key, p_choice, p_reason, p_reference, p_deadline, p_ending, p_evidence, v_op.state, v_op.attempts, p_right, v_second,
      p_label, v_now, v_effective)
    RETURNING * INTO v_decision;
  IF v_second THEN
    INSERT INTO duly.history (key, at, before, after, who, why, attempt, detail) VALUES (p_key, v_now, v_op.state, v_op.state, v_who,
      'decision ' || v_decision.id || ' waits for approval: ' || p_choice, nullif(v_op.attempts, 0), jsonb_build_object('decision', v_decision.id));
    RETURN (p_key, true, v_decision.id, v_op.state, NULL, CASE p_right
      WHEN 'proposal' THEN 'kept as proposal ' || v_decision.id || ': an operator confirms it with "duly approve ' || v_decision.id || '"'
      ELSE 'recorded; a second person must approve it: "duly approve ' || v_decision.id || '"' END)::duly.decided;
  END IF;
  RETURN duly._make_effective(v_decision, v_op, v_who);
END $$;

-- At once, or at its time: then the row's alarm is the instruction's.
CREATE FUNCTION duly._make_effective(p_decision duly.decision, p_op duly.operation, p_who text) RETURNS duly.decided
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_op duly.operation;
  v_now timestamptz := duly.now();
  v_effective timestamptz := greatest(v_now, p_decision.effective_at);
BEGIN
  IF v_effective > v_now THEN
    UPDATE duly.operation o SET pending_decision = p_decision.id, pending_at = v_effective, wake_at = v_now WHERE o.key = p_op.key;
    INSERT INTO duly.history (key, at, before, after, who, why, attempt, detail) VALUES (p_op.key, v_now, p_op.state, p_op.state, p_who,
      'decision ' || p_decision.id || ': ' || p_decision.choice || ', effective ' || duly._utc(v_effective), p_op.attempts,
      jsonb_build_object('decision', p_decision.id));
  ELSE
    PERFORM duly._apply(p_decision, p_op, p_who);
  END IF;
  SELECT * INTO v_op FROM duly.operation o WHERE o.key = p_op.key;
  RETURN (p_op.key, true, p_decision.id, v_op.state, duly._utc(v_effective), CASE
    WHEN v_op.pending_decision = p_decision.id THEN 'recorded; effective ' || duly._utc(v_effective) || ', when no request can still be under way'
    ELSE 'recorded; it is now ' || v_op.state END)::duly.decided;
END $$;

-- What a decision does, when it takes effect. The caller holds the locks.
CREATE FUNCTION duly._apply(p_decision duly.decision, p_op duly.operation, p_who text) RETURNS void
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := duly.now();
  v_named int[];
  v_why text := 'decision ' || p_decision.id || ': ' || p_decision.choice || ', ' || p_decision.reason;
  v_detail jsonb := jsonb_build_object('decision', p_decision.id);
  v_op duly.operation;
BEGIN
  IF p_decision.choice IN ('delivered', 'not delivered', 'new epoch') THEN
    WITH named AS (
      UPDATE duly.attempt a SET resolved_at = v_now, resolved_by = 'decision ' || p_decision.id, effect = CASE p_decision.choice
          WHEN 'not delivered' THEN false
          -- Which of several open attempts had the effect, nobody says; of those set aside nothing is known.
          WHEN 'delivered' THEN CASE p_op.open_attempts WHEN 1 THEN true END END
        WHERE a.key = p_op.key AND a.resolved_at IS NULL RETURNING a.number)
    SELECT array_agg(n.number ORDER BY n.number) INTO v_named FROM named n;
    v_detail := v_detail || jsonb_build_object('attempts', v_named);
  END IF;
  CASE p_decision.choice
    WHEN 'delivered' THEN
      PERFORM duly._move(p_op, 'delivered', p_who, v_why, v_detail, p_settled_by => 'person', p_reference => p_decision.reference);
    WHEN 'not delivered' THEN
      PERFORM duly._without_effect(p_op, p_who, v_why, v_detail, p_op.open_attempts, interval '0');
    WHEN 'new epoch' THEN
      UPDATE duly.operation o SET epoch = o.epoch + 1, spent = 0 WHERE o.key = p_op.key RETURNING * INTO v_op;
      PERFORM duly._without_effect(v_op, p_who, v_why, v_detail, v_op.open_attempts, interval '0');
    WHEN 'abandon' THEN
      PERFORM duly._move(p_op, 'abandoned', p_who, v_why, v_detail);
    WHEN 'release' THEN
      PERFORM duly._move(p_op, 'scheduled', p_who, v_why, v_detail, p_wake_at => v_now, p_waiting_for => v_why);
    WHEN 'extend' THEN
      UPDATE duly.operation o SET deadline = p_decision.deadline, wake_at = CASE WHEN o.state = 'blocked' THEN o.wake_at ELSE v_now END
        WHERE o.key = p_op.key;
      INSERT INTO duly.history (key, at, before, after, who, why, attempt, detail) VALUES (p_op.key, v_now, p_op.state, p_op.state, p_who, v_why,
        nullif(p_op.attempts, 0), v_detail || jsonb_build_object('deadline', duly._utc(p_op.deadline), 'new_deadline', duly._utc(p_decision.deadline)));
    WHEN 'reopen' THEN
      IF p_decision.deadline IS NOT NULL THEN
        UPDATE duly.operation o SET deadline = p_decision.deadline WHERE o.key = p_op.key;
        v_detail := v_detail || jsonb_build_object('deadline', duly._utc(p_op.deadline), 'new_deadline', duly._utc(p_decision.deadline));
      END IF;
      -- The generation grows in the statement that opens it: only a run of its own may serve it.
      PERFORM duly._move(p_op, 'scheduled', p_who, v_why, v_detail, p_wake_at => v_now, p_waiting_for => v_why);
    WHEN 'correct' THEN
      IF p_decision.ending <> p_op.state THEN
        -- What was left open is settled by this word, and what nobody but people or look-ups said of an attempt follows it.
        WITH named AS (
          SELECT a.number, count(*) OVER () AS n FROM duly.attempt a WHERE a.key = p_op.key AND (a.resolved_at IS NULL OR CASE
            WHEN p_decision.ending <> 'delivered' THEN a.effect IS DISTINCT FROM false
            ELSE a.outcome = 'unknown' AND NOT EXISTS (SELECT FROM duly.attempt b WHERE b.key = a.key AND b.effect) END))
        UPDATE duly.attempt a SET resolved_at = coalesce(a.resolved_at, v_now), resolved_by = 'decision ' || p_decision.id,
            effect = CASE WHEN p_decision.ending = 'rejected' THEN false WHEN p_decision.ending = 'delivered' AND n.n = 1 THEN true END
          FROM named n WHERE a.key = p_op.key AND a.number = n.number;
        PERFORM duly._move(p_op, p_decision.ending, p_who, v_why, v_detail, p_op.open_attempts,
          p_settled_by => CASE p_decision.ending WHEN 'delivered' THEN 'person' END, p_reference => p_decision.reference);
      ELSE
        INSERT INTO duly.history (key, at, before, after, who, why, attempt, detail) VALUES (p_op.key, v_now, p_op.state, p_op.state, p_who, v_why,
          nullif(p_op.attempts, 0), v_detail);
      END IF;
      UPDATE duly.operation o SET contradicted = false WHERE o.key = p_op.key;
  END CASE;
END $$;

-- For people, by their own database login. expected_state and expected_attempt: what they saw when they decided.
CREATE FUNCTION duly.decide(
  key text, choice text, reason text, reference text DEFAULT NULL, evidence jsonb DEFAULT NULL,
  expected_state text DEFAULT NULL, expected_attempt int DEFAULT NULL, label text DEFAULT NULL,
  deadline timestamptz DEFAULT NULL, ending text DEFAULT NULL
) RETURNS duly.decided LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT duly._decide(key, choice, reason, reference, evidence, expected_state, expected_attempt, label, duly._right(), deadline, ending);
$$;

-- A second person's word on a decision that waits for one, or an operator's on a proposal.
CREATE FUNCTION duly.approve(decision bigint, reason text) RETURNS duly.decided
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_decision duly.decision;
  v_choice duly.choice;
  v_op duly.operation;
  v_refusal text;
BEGIN
  IF coalesce(length(trim(approve.reason)), 0) < 5 THEN
    PERFORM duly._refuse('reason for approving decision ' || coalesce(approve.decision::text, 'NULL') || ' is missing or too short', 'Say in a few words how you know; it is kept.');
  END IF;
  SELECT * INTO v_decision FROM duly.decision d WHERE d.id = approve.decision;
  IF NOT FOUND THEN
    PERFORM duly._refuse('decision ' || coalesce(approve.decision::text, 'NULL') || ' is not in the ledger', 'See "duly show KEY".', 'P0002');
  END IF;
  v_op := duly._lock(v_decision.key);
  SELECT * INTO v_choice FROM duly.choice c WHERE c.name = v_decision.choice;
  v_refusal := CASE
    WHEN NOT v_decision.needs_approval THEN 'decision ' || v_decision.id || ' needs no approval'
    WHEN EXISTS (SELECT FROM duly.approval a WHERE a.decision = v_decision.id) THEN 'decision ' || v_decision.id || ' is approved already'
    WHEN v_op.state_since > v_decision.at THEN 'it moved on since it was decided: now ' || v_op.state || ', attempt ' || v_op.attempts
    WHEN v_decision.by_right <> 'proposal' AND v_decision.decided_by = session_user THEN 'the second person cannot be the first: ' || session_user
    ELSE duly._refusal(v_op, v_choice, duly._right(), v_decision.state_seen, v_decision.attempt_seen, v_decision.deadline, v_decision.ending) END;
  IF v_refusal IS NOT NULL THEN
    INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at) VALUES (v_op.key, nullif(v_op.attempts, 0), 'refused decision',
      v_decision.choice, jsonb_build_object('approval_of', v_decision.id, 'reason', approve.reason, 'refusal', v_refusal), session_user, duly.now());
    RETURN (v_op.key, false, v_decision.id, v_op.state, NULL, 'refused: ' || v_refusal)::duly.decided;
  END IF;
  INSERT INTO duly.approval (decision, by_right, reason, at) VALUES (v_decision.id, duly._right(), approve.reason, duly.now());
  IF v_decision.by_right = 'proposal' THEN
    -- Nobody with a right has spoken yet: the approver decides in their own name.
    RETURN duly._decide(v_decision.key, v_decision.choice, approve.reason || ' (proposal ' || v_decision.id || ': ' || v_decision.reason || ')',
      v_decision.reference, v_decision.evidence, v_decision.state_seen, v_decision.attempt_seen, v_decision.label, duly._right(),
      v_decision.deadline, v_decision.ending);
  END IF;
  RETURN duly._make_effective(v_decision, v_op, session_user || ', approving ' || v_decision.decided_by);
END $$;

-- What arrived by a bare Temporal signal or update. Choices that send nothing are decisions with the right "temporal";
-- every other choice is a proposal that "duly approve" turns into a decision.
CREATE FUNCTION duly.decide_by_temporal(
  p_key text, p_choice text, p_reason text, p_reference text, p_raw jsonb, p_label text, p_who text
) RETURNS duly.decided LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_op duly.operation;
  v_problem text;
BEGIN
  IF p_choice IS NOT NULL THEN
    BEGIN
      RETURN duly._decide(p_key, p_choice, p_reason, p_reference, CASE WHEN coalesce(p_reference, '') = '' THEN NULL ELSE p_raw END,
        NULL, NULL, p_label, CASE WHEN p_choice IN ('delivered', 'abandon') THEN 'temporal' ELSE 'proposal' END);
    EXCEPTION WHEN invalid_parameter_value OR no_data_found THEN
      v_problem := SQLERRM;
    END;
  END IF;
  v_op := duly._lock(p_key);
  IF v_op.key IS NULL THEN
    RETURN (p_key, false, NULL, NULL, NULL, 'refused: the ledger does not know this key')::duly.decided;
  END IF;
  INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at)
    VALUES (p_key, nullif(v_op.attempts, 0), 'signal',
      -- As received: jsonb_strip_nulls would reach into it.
      coalesce(p_choice, 'unreadable'), jsonb_build_object('received', p_raw)
        || CASE WHEN v_problem IS NULL THEN '{}' ELSE jsonb_build_object('problem', v_problem) END,
      p_who || coalesce(' for ' || p_label, ''), duly.now());
  RETURN (p_key, false, NULL, v_op.state, NULL, 'kept as evidence, nothing decided: '
    || coalesce(v_problem, 'send {"choice": "delivered" or "abandon", "reason": ..., "reference": ...}'))::duly.decided;
END $$;

