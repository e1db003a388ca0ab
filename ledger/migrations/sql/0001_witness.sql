-- The restore guard. The witness is a history row that somebody outside this database remembers: if it is not here any
-- more, or is another one, the ledger went back in time.

-- As it is kept outside, in JSON with these names. timeline: of the server, see duly._timeline(). at: the ledger's clock.
CREATE TYPE duly.witness AS (ledger_id uuid, seq bigint, row_id uuid, timeline text, at timestamptz);

-- Which server writes this ledger's log: its identity, and its timeline, which grows with every promotion and every
-- recovery to a point in time. Only a plain copy of files keeps both.
CREATE FUNCTION duly._timeline() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT c.system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system() c;
$$;

-- The newest history row, to be remembered elsewhere. seq NULL: there is no history yet. It must not be remembered before
-- it is durable: a row of somebody with synchronous_commit = off is visible before it is on the disk. This transaction's
-- own COMMIT waits for all that was written before it, and where replicas are synchronous for them too.
CREATE FUNCTION duly.witness_now() RETURNS duly.witness
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_witness duly.witness;
BEGIN
  SELECT l.id INTO v_witness.ledger_id FROM duly.ledger l;
  v_witness.at := duly.now();                              -- before the row is read: never later than what it vouches for
  SELECT h.seq, h.row_id INTO v_witness.seq, v_witness.row_id FROM duly.history h ORDER BY h.seq DESC LIMIT 1;
  v_witness.timeline := duly._timeline();
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  PERFORM pg_logical_emit_message(true, 'duly', 'witness');  -- a COMMIT that wrote nothing would wait for nothing
  RETURN v_witness;
END $$;

-- Compares what was remembered with what is here.
--   adopted         an owner adopted this ledger after it was taken: it says nothing any more
--   lost            the row is gone or another, or an older primary came back: the ledger went back in time
--   newer timeline  the row is here and the server is another one, or was promoted or recovered since
CREATE FUNCTION duly.check_witness(p_witness jsonb) RETURNS text
  LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    WHEN l.id <> w.ledger_id THEN 'other ledger'
    WHEN w.at <= (SELECT max(a.at) FROM duly.adoption a) THEN 'adopted'
    WHEN w.seq IS NOT NULL AND NOT EXISTS (SELECT FROM duly.history h WHERE h.seq = w.seq AND h.row_id = w.row_id) THEN 'lost'
    WHEN split_part(w.timeline, '/', 1) = split_part(t.line, '/', 1)
      AND split_part(w.timeline, '/', 2) COLLATE "C" > split_part(t.line, '/', 2) COLLATE "C" THEN 'lost'
    WHEN w.timeline <> t.line THEN 'newer timeline'
    ELSE 'same' END
  FROM duly.ledger l, jsonb_populate_record(NULL::duly.witness, p_witness) w, duly._timeline() AS t(line);
$$;

-- Whether the holder of this witness may have a claim granted. NULL: yes. It quarantines a ledger that went back in time,
-- in the claim's own transaction: a workflow that waits claims by itself, and must not be faster than whoever looks.
CREATE FUNCTION duly._guard(p_witness jsonb, p_who text) RETURNS text
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_verdict text := CASE WHEN p_witness IS NOT NULL THEN duly.check_witness(p_witness) END;
  v_ledger duly.ledger;
BEGIN
  IF v_verdict = 'other ledger' THEN
    PERFORM duly._refuse('this is another ledger than the one that ' || p_who || ' serves', 'Look at DULY_DATABASE_URL.', '55000');
  ELSIF v_verdict = 'lost' THEN
    PERFORM duly.quarantine(duly._lost(p_witness), p_who);
  END IF;
  SELECT * INTO v_ledger FROM duly.ledger;
  RETURN CASE WHEN v_ledger.quarantine IS NOT NULL THEN 'quarantine'
    WHEN v_ledger.timeline <> duly._timeline() THEN 'newer timeline' END;
END $$;

CREATE FUNCTION duly._lost(p_witness jsonb) RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT 'the ledger went back in time: history row ' || coalesce(p_witness->>'seq', '0') || ', seen at '
    || duly._utc((p_witness->>'at')::timestamptz) || ' on timeline ' || (p_witness->>'timeline') || ', is not in it';
$$;

-- What a worker learns at each look, in one statement: the verdict on its witness (none: it has none), and the witness to
-- remember from now on. That is all NULL in quarantine: what is remembered stays, to recognise the right copy by.
CREATE TYPE duly.watched AS (
  verdict text, quarantine text, moved boolean, served boolean, ledger_id uuid, seq bigint, row_id uuid, timeline text, at timestamptz);

CREATE FUNCTION duly.watch(p_witness jsonb, p_who text) RETURNS duly.watched
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_watched duly.watched;
  v_ledger duly.ledger;
  v_witness duly.witness;
BEGIN
  v_watched.verdict := CASE WHEN p_witness IS NULL THEN 'none' ELSE duly.check_witness(p_witness) END;
  IF v_watched.verdict = 'lost' THEN
    PERFORM duly.quarantine(duly._lost(p_witness), p_who);
  END IF;
  SELECT * INTO v_ledger FROM duly.ledger;
  v_watched.quarantine := v_ledger.quarantine;
  v_watched.served := v_ledger.timeline IS NOT NULL;
  v_watched.moved := v_ledger.timeline <> duly._timeline();
  IF v_ledger.quarantine IS NULL AND v_watched.verdict <> 'other ledger' THEN
    IF v_watched.verdict = 'same' AND (p_witness->>'seq')::bigint IS NOT DISTINCT FROM (SELECT max(h.seq) FROM duly.history h) THEN
      v_witness := jsonb_populate_record(NULL::duly.witness, p_witness);  -- nothing new, and nothing to write
    ELSE
      v_witness := duly.witness_now();
    END IF;
    v_watched.ledger_id := v_witness.ledger_id;
    v_watched.seq := v_witness.seq;
    v_watched.row_id := v_witness.row_id;
    v_watched.timeline := v_witness.timeline;
    v_watched.at := v_witness.at;
  END IF;
  RETURN v_watched;
END $$;

-- The first worker begins to serve this ledger, and its witness is kept outside. From now on "no witness anywhere" means
-- that it was lost, not that nobody ever took one.
CREATE FUNCTION duly.serve() RETURNS void
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE duly.ledger SET timeline = duly._timeline() WHERE timeline IS NULL;
$$;

-- After a promotion or a recovery the witness's row is here and what was committed just after it may not be: a claim, for
-- one. Such an operation was with Temporal already, and its time to act had come: those are in doubt. A start that was
-- lost as well is recognised by Temporal, which knows the run. Bounded; when none is left, 0, and claims are granted again.
CREATE FUNCTION duly.doubt_moved(p_who text, p_limit int) RETURNS int
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := duly.now();
  v_key text;
  v_op duly.operation;
  v_ledger duly.ledger;
  v_n int := 0;
BEGIN
  SELECT * INTO v_ledger FROM duly.ledger;
  IF (v_ledger.timeline <> duly._timeline()) IS NOT TRUE THEN
    RETURN 0;
  END IF;
  FOR v_key IN SELECT o.key FROM duly.operation o WHERE o.state = 'scheduled' AND o.dispatched_at IS NOT NULL AND o.due_at <= v_now
      AND (o.in_hand OR o.wake_at <= v_now + duly._grace()) ORDER BY o.due_at LIMIT p_limit LOOP
    v_op := duly._lock(v_key);
    IF v_op.state = 'scheduled' THEN
      PERFORM duly._doubt(v_op, p_who, NULL, 'it may have been called just before the database moved from timeline '
        || v_ledger.timeline || ' to ' || duly._timeline());
      v_n := v_n + 1;
    END IF;
  END LOOP;
  IF v_n = 0 THEN
    UPDATE duly.ledger SET timeline = duly._timeline();
  END IF;
  RETURN v_n;
END $$;

-- Every operation that could have run in the gap is in doubt: those due by the quarantine that the ledger calls not yet
-- called. A stand-in attempt carries the doubt, so that only evidence or a decision resolves it, and none is put in doubt
-- twice. What was in doubt already is not settled by what was allowed before the gap: no repeat, and no decision that
-- waits for its time; in the gap more may have been sent. Bounded; call until it returns 0.
CREATE FUNCTION duly.doubt_gap(p_cause text, p_who text, p_limit int) RETURNS int
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_quarantined timestamptz;
  v_early boolean;
  v_key text;
  v_op duly.operation;
  v_n int := 0;
BEGIN
  SELECT l.quarantined_at INTO v_quarantined FROM duly.ledger l;
  FOR v_key IN SELECT o.key FROM duly.operation o WHERE o.state = 'scheduled' AND o.due_at <= v_quarantined AND o.created_at <= v_quarantined
      AND NOT EXISTS (SELECT FROM duly.attempt a WHERE a.key = o.key AND a.claimed_at >= v_quarantined)
      ORDER BY o.due_at LIMIT p_limit LOOP
    v_op := duly._lock(v_key);
    IF v_op.state = 'scheduled' THEN
      PERFORM duly._doubt(v_op, p_who, NULL, p_cause);
      v_n := v_n + 1;
    END IF;
  END LOOP;
  FOR v_key IN SELECT o.key FROM duly.operation o WHERE o.state IN ('calling', 'accepted', 'unknown')
      AND o.state_since <= v_quarantined AND (o.no_repeat IS NULL
        OR (SELECT d.at FROM duly.decision d WHERE d.id = o.pending_decision) <= v_quarantined) LIMIT p_limit LOOP
    v_op := duly._lock(v_key);
    SELECT d.at <= v_quarantined INTO v_early FROM duly.decision d WHERE d.id = v_op.pending_decision;
    UPDATE duly.operation o SET no_repeat = coalesce(o.no_repeat, p_cause),
      pending_decision = CASE WHEN NOT coalesce(v_early, false) THEN o.pending_decision END,
      pending_at = CASE WHEN NOT coalesce(v_early, false) THEN o.pending_at END,
      wake_at = CASE WHEN v_early THEN duly.now() ELSE o.wake_at END
      WHERE o.key = v_key AND o.state IN ('calling', 'accepted', 'unknown');
    IF v_early THEN
      INSERT INTO duly.history (key, at, before, after, who, why, attempt, detail) VALUES (v_key, duly.now(), v_op.state, v_op.state, p_who,
        'decision ' || v_op.pending_decision || ' is withdrawn before it took effect: ' || p_cause, v_op.attempts,
        jsonb_build_object('decision', v_op.pending_decision));
    END IF;
    v_n := v_n + 1;
  END LOOP;
  RETURN v_n;
END $$;

-- Nothing is sent from now on, until an owner adopts this ledger. False: it was quarantined already.
CREATE FUNCTION duly.quarantine(p_cause text, p_who text) RETURNS boolean
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE duly.ledger l SET quarantine = p_cause || ' (' || p_who || ')', quarantined_at = duly.now() WHERE l.quarantine IS NULL;
  RETURN FOUND;
END $$;

-- A worker stood still for longer than the settle time allows for, while this attempt was in flight.
CREATE FUNCTION duly.exposed(p_key text, p_attempt int, p_still_s double precision, p_who text) RETURNS void
  LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO duly.evidence (key, attempt, source, finding, detail, who, at)
    VALUES (p_key, p_attempt, 'worker', 'exposed', jsonb_build_object('still_s', round(p_still_s::numeric, 1)), p_who, duly.now());
$$;

-- An owner's word that this ledger is the one to go on with. Refused while operations of the gap are not in doubt yet.
CREATE FUNCTION duly.adopt(reason text) RETURNS duly.answer
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_ledger duly.ledger;
BEGIN
  IF coalesce(length(trim(adopt.reason)), 0) < 5 THEN
    PERFORM duly._refuse('reason for adopting this ledger is missing or too short', 'Say what was restored and how it was checked; it is kept.');
  END IF;
  SELECT * INTO v_ledger FROM duly.ledger FOR UPDATE;
  IF v_ledger.quarantine IS NULL THEN
    RETURN (v_ledger.id::text, 'open', false, 'it is not in quarantine')::duly.answer;
  END IF;
  LOOP
    EXIT WHEN duly.doubt_gap('the ledger was restored from an older copy: ' || v_ledger.quarantine, session_user, 1000) = 0;
  END LOOP;
  INSERT INTO duly.adoption (quarantine, quarantined_at, reason, at) VALUES (v_ledger.quarantine, v_ledger.quarantined_at, adopt.reason, duly.now());
  UPDATE duly.ledger SET quarantine = NULL, quarantined_at = NULL, timeline = duly._timeline();
  RETURN (v_ledger.id::text, 'open', true, 'adopted; what could have run in the gap is unknown, and the rest goes on')::duly.answer;
END $$;
