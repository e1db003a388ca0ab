-- What applications call, inside their own transaction. See README, "Schedule from your own transaction".

CREATE TYPE duly.scheduled AS (
  key text, state text, created boolean, due_utc text, deadline_utc text, note text);

CREATE FUNCTION duly._utc(p_at timestamptz) RETURNS text LANGUAGE sql STABLE
  RETURN to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- Refusals of an argument carry SQLSTATE 22023 and name the argument; a conflict with what is there carries 23505.
CREATE FUNCTION duly._refuse(p_message text, p_hint text, p_errcode text DEFAULT '22023') RETURNS void
  LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '%', p_message USING ERRCODE = p_errcode, HINT = p_hint;
END $$;

CREATE FUNCTION duly._check_times(p_key text, p_due_at timestamptz, p_deadline timestamptz, p_now timestamptz) RETURNS void
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_due_at IS NULL OR p_deadline IS NULL THEN
    PERFORM duly._refuse('due_at and deadline of ' || p_key || ' must be given', 'Both are times with a zone.');
  ELSIF NOT isfinite(p_due_at) OR NOT isfinite(p_deadline) THEN
    PERFORM duly._refuse('due_at or deadline of ' || p_key || ' is infinite', 'Both are times with a zone.');
  ELSIF p_due_at > p_now + interval '100 years' OR p_deadline > p_now + interval '200 years' THEN
    PERFORM duly._refuse('due_at or deadline of ' || p_key || ' lies more than a century ahead: due ' || p_due_at || ', deadline ' || p_deadline,
                         'That is a slip of the pen. Give a time within the next hundred years.');
  ELSIF p_deadline <= p_due_at THEN
    PERFORM duly._refuse('deadline of ' || p_key || ' (' || duly._utc(p_deadline) || ') is not after due_at (' || duly._utc(p_due_at) || ')',
                         'Give a deadline later than the due time.');
  ELSIF p_deadline <= p_now THEN
    PERFORM duly._refuse('deadline of ' || p_key || ' (' || duly._utc(p_deadline) || ') is already past',
                         'It is ' || duly._utc(p_now) || ' by the ledger''s clock.');
  END IF;
END $$;

CREATE FUNCTION duly.schedule(
  key text, kind text, payload jsonb, due_at timestamptz, deadline timestamptz,
  subject text DEFAULT NULL, version bigint DEFAULT NULL, tenant text DEFAULT NULL, trace_context jsonb DEFAULT NULL
) RETURNS duly.scheduled LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_kind duly.kind;
  v_op duly.operation;
  v_now timestamptz;
  v_digest text;
  v_newest duly.subject;
  v_missing text;
  v_old duly.operation;
BEGIN
  IF schedule.key IS NULL OR octet_length(schedule.key) NOT BETWEEN 1 AND 200
     OR schedule.key !~ '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$' THEN
    PERFORM duly._refuse('key ' || coalesce(quote_literal(left(schedule.key, 250)), 'NULL') || ' breaks the key rule',
      '1 to 200 bytes of A-Z a-z 0-9 . _ : - with no leading or trailing separator, for example order-17:confirmation:1.');
  END IF;
  SELECT * INTO v_kind FROM duly.kind k WHERE k.name = schedule.kind AND k.active;
  IF NOT FOUND THEN
    PERFORM duly._refuse('kind ' || coalesce(quote_literal(schedule.kind), 'NULL') || ' is not known',
      'Known: ' || coalesce((SELECT string_agg(k.name, ', ' ORDER BY k.name) FROM duly.kind k WHERE k.active), 'none')
      || '. Kinds are declared in duly.toml and copied in by "duly migrate".');
  END IF;
  IF schedule.payload IS NULL OR jsonb_typeof(schedule.payload) <> 'object' THEN
    PERFORM duly._refuse('payload of ' || schedule.key || ' is not a JSON object', 'Give an object such as {"order_id": 17}.');
  ELSIF octet_length(schedule.payload::text) > 65536 THEN
    PERFORM duly._refuse('payload of ' || schedule.key || ' has ' || octet_length(schedule.payload::text) || ' bytes; 65536 are allowed',
      'Keep the data in a table of your own and put its id in the payload.');
  ELSIF jsonb_path_exists(schedule.payload, 'strict $.**{100 to last}') THEN
    -- Deeper than any message, and far below what JSON readers stop at (Python: about 1,000): the claim must be able to.
    PERFORM duly._refuse('payload of ' || schedule.key || ' is nested more than 100 deep', 'Flatten it.');
  END IF;
  SELECT string_agg(f, ', ' ORDER BY f) INTO v_missing FROM unnest(v_kind.required) f WHERE NOT schedule.payload ? f;
  IF v_missing IS NOT NULL THEN
    PERFORM duly._refuse('payload of ' || schedule.key || ' lacks ' || v_missing, 'Kind ' || v_kind.name || ' requires it.');
  END IF;
  IF (schedule.subject IS NULL) <> (schedule.version IS NULL) THEN
    PERFORM duly._refuse('subject and version of ' || schedule.key || ' go together', 'Give both or neither.');
  ELSIF octet_length(schedule.subject) NOT BETWEEN 1 AND 200 THEN
    PERFORM duly._refuse('subject of ' || schedule.key || ' has ' || octet_length(schedule.subject) || ' bytes; 1 to 200 are allowed', 'Shorten it.');
  END IF;
  v_digest := encode(sha256(convert_to(schedule.payload::text, 'UTF8')), 'hex');

  IF schedule.subject IS NOT NULL THEN
    INSERT INTO duly.subject VALUES (schedule.subject, schedule.version, schedule.key) ON CONFLICT DO NOTHING;
    SELECT * INTO v_newest FROM duly.subject s WHERE s.subject = schedule.subject FOR UPDATE;
  END IF;
  v_now := duly.now();                                     -- after the lock, never before
  SELECT * INTO v_op FROM duly.operation o WHERE o.key = schedule.key;
  IF NOT FOUND THEN
    PERFORM duly._check_times(schedule.key, schedule.due_at, schedule.deadline, v_now);
    IF schedule.subject IS NOT NULL THEN
      IF v_newest.newest_version > schedule.version THEN
        PERFORM duly._refuse('version ' || schedule.version || ' of ' || schedule.subject || ' is older than the newest, '
          || v_newest.newest_version || ' (' || v_newest.newest_key || ')', 'A superseded version never revives. Schedule a newer one.', '23505');
      ELSIF v_newest.newest_version = schedule.version AND v_newest.newest_key <> schedule.key THEN
        PERFORM duly._refuse('version ' || schedule.version || ' of ' || schedule.subject || ' has the key ' || v_newest.newest_key || ' already',
          'Use that key, or schedule a newer version.', '23505');
      END IF;
    END IF;
    INSERT INTO duly.operation AS o (key, kind, subject, version, tenant, payload, payload_digest, trace_context, due_at, deadline,
        state, state_since, wake_at, created_at)
      VALUES (schedule.key, v_kind.name, schedule.subject, schedule.version, schedule.tenant, schedule.payload, v_digest,
        schedule.trace_context, schedule.due_at, schedule.deadline, 'scheduled', v_now, schedule.due_at - v_kind.start_lead, v_now)
      ON CONFLICT (key) DO NOTHING RETURNING * INTO v_op;
    IF v_op.key IS NOT NULL THEN
      INSERT INTO duly.history (key, at, before, after, who, why, detail) VALUES (schedule.key, v_now, NULL, 'scheduled', session_user, 'scheduled',
        jsonb_build_object('due', duly._utc(v_op.due_at), 'deadline', duly._utc(v_op.deadline)));
      IF schedule.subject IS NOT NULL THEN
        UPDATE duly.subject s SET newest_version = schedule.version, newest_key = schedule.key WHERE s.subject = schedule.subject;
        FOR v_old IN SELECT * FROM duly.operation o WHERE o.subject = schedule.subject AND o.version < schedule.version
            AND o.state IN ('scheduled', 'blocked') AND o.open_attempts = 0 ORDER BY o.key FOR UPDATE LOOP
          PERFORM duly._move(v_old, 'superseded', session_user, 'version ' || schedule.version || ' (' || schedule.key || ') took its place');
        END LOOP;
      END IF;
      RETURN (schedule.key, 'scheduled', true, duly._utc(v_op.due_at), duly._utc(v_op.deadline), '')::duly.scheduled;
    END IF;
    -- Somebody else committed the same key while we were about it.
    SELECT * INTO v_op FROM duly.operation o WHERE o.key = schedule.key;
    IF NOT FOUND THEN
      PERFORM duly._refuse('key ' || schedule.key || ' was scheduled by a transaction that this one cannot see', 'Run the transaction again.', '40001');
    END IF;
  END IF;
  v_missing := concat_ws(', ',
    CASE WHEN v_op.kind <> schedule.kind THEN 'kind (' || v_op.kind || ' is there)' END,
    CASE WHEN v_op.subject IS DISTINCT FROM schedule.subject THEN 'subject' END,
    CASE WHEN v_op.version IS DISTINCT FROM schedule.version THEN 'version' END,
    CASE WHEN v_op.payload_digest <> v_digest THEN 'payload' END);
  IF v_missing <> '' THEN
    PERFORM duly._refuse('key ' || schedule.key || ' exists with other content: ' || v_missing || ' differs',
      'Nothing was changed. Another intention needs another key (or a newer version of its subject).', '23505');
  END IF;
  RETURN (v_op.key, v_op.state, false, duly._utc(v_op.due_at), duly._utc(v_op.deadline),
    CASE WHEN (v_op.due_at, v_op.deadline) IS DISTINCT FROM (schedule.due_at, schedule.deadline)
      THEN 'times differ: the first call''s times stand; use duly.reschedule to change them' ELSE '' END)::duly.scheduled;
END $$;

CREATE TYPE duly.answer AS (key text, state text, done boolean, answer text);

CREATE FUNCTION duly.cancel(key text, reason text) RETURNS duly.answer
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_op duly.operation;
BEGIN
  IF coalesce(length(trim(cancel.reason)), 0) = 0 THEN
    PERFORM duly._refuse('reason for cancelling ' || coalesce(cancel.key, 'NULL') || ' is missing', 'Say why; it is kept.');
  END IF;
  v_op := duly._lock(cancel.key);
  IF v_op.key IS NULL THEN
    PERFORM duly._refuse('key ' || coalesce(quote_literal(cancel.key), 'NULL') || ' is not in the ledger', 'See "duly list".', 'P0002');
  ELSIF v_op.ended_at IS NOT NULL THEN
    RETURN (v_op.key, v_op.state, v_op.state = 'cancelled', CASE WHEN v_op.state = 'cancelled' THEN 'it was cancelled already'
      ELSE 'too late: it ended as ' || v_op.state || ' at ' || duly._utc(v_op.ended_at) END)::duly.answer;
  ELSIF v_op.open_attempts = 0 AND v_op.state IN ('scheduled', 'blocked') THEN
    PERFORM duly._move(v_op, 'cancelled', session_user, cancel.reason);
    RETURN (v_op.key, 'cancelled', true, 'cancelled; no call will be made')::duly.answer;
  END IF;
  UPDATE duly.operation o SET stop_requested = coalesce(o.stop_requested, cancel.reason), wake_at = duly.now() WHERE o.key = v_op.key;
  INSERT INTO duly.history (key, at, before, after, who, why, attempt, detail)
    VALUES (v_op.key, duly.now(), v_op.state, v_op.state, session_user, 'stop requested: ' || cancel.reason, nullif(v_op.attempts, 0),
      jsonb_build_object('stop_requested', coalesce(v_op.stop_requested, cancel.reason)));
  RETURN (v_op.key, v_op.state, false, 'too late to be sure: attempt ' || v_op.attempts || ' may have been sent (' || v_op.state
    || '). No further attempt will start; proof of no effect ends it as cancelled')::duly.answer;
END $$;

CREATE FUNCTION duly.reschedule(key text, due_at timestamptz, deadline timestamptz, reason text) RETURNS duly.answer
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_op duly.operation;
  v_lead interval;
BEGIN
  IF coalesce(length(trim(reschedule.reason)), 0) = 0 THEN
    PERFORM duly._refuse('reason for rescheduling ' || coalesce(reschedule.key, 'NULL') || ' is missing', 'Say why; it is kept.');
  END IF;
  v_op := duly._lock(reschedule.key);
  IF v_op.key IS NULL THEN
    PERFORM duly._refuse('key ' || coalesce(quote_literal(reschedule.key), 'NULL') || ' is not in the ledger', 'See "duly list".', 'P0002');
  ELSIF v_op.state <> 'scheduled' THEN
    RETURN (v_op.key, v_op.state, false, 'too late: it is ' || v_op.state)::duly.answer;
  END IF;
  PERFORM duly._check_times(v_op.key, reschedule.due_at, reschedule.deadline, duly.now());
  IF v_op.attempts > 0 AND reschedule.deadline > v_op.deadline THEN
    RETURN (v_op.key, v_op.state, false, 'refused: ' || v_op.attempts || ' attempts were made; only an owner moves its deadline later')::duly.answer;
  END IF;
  SELECT k.start_lead INTO v_lead FROM duly.kind k WHERE k.name = v_op.kind;
  -- A row that nobody was asked to run yet needs no workflow before its time; a sleeping workflow must look again now.
  UPDATE duly.operation o SET due_at = reschedule.due_at, deadline = reschedule.deadline,
    wake_at = CASE WHEN o.dispatched_at IS NULL THEN reschedule.due_at - v_lead ELSE duly.now() END
  WHERE o.key = v_op.key;
  INSERT INTO duly.history (key, at, before, after, who, why, detail)
    VALUES (v_op.key, duly.now(), v_op.state, v_op.state, session_user, 'rescheduled: ' || reschedule.reason,
      jsonb_build_object('due', duly._utc(v_op.due_at), 'deadline', duly._utc(v_op.deadline),
        'new_due', duly._utc(reschedule.due_at), 'new_deadline', duly._utc(reschedule.deadline)));
  RETURN (v_op.key, v_op.state, true, 'now due ' || duly._utc(reschedule.due_at) || ', deadline ' || duly._utc(reschedule.deadline))::duly.answer;
END $$;
