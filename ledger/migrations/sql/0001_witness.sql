-- The restore guard. The witness is a history row that somebody outside this database remembers: if it is not here any
-- more, or is another one, the ledger went back in time.

CREATE TYPE duly.witness AS (ledger_id uuid, seq bigint, row_id uuid, timeline text);

-- The newest history row, to be remembered elsewhere. seq NULL: there is no history yet.
CREATE FUNCTION duly.witness_now() RETURNS duly.witness
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_witness duly.witness;
BEGIN
  SELECT l.id INTO v_witness.ledger_id FROM duly.ledger l;
  SELECT h.seq, h.row_id INTO v_witness.seq, v_witness.row_id FROM duly.history h ORDER BY h.seq DESC LIMIT 1;
  v_witness.timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
  RETURN v_witness;
END $$;

-- Compares what was remembered with what is here: same, lost (the row is gone or another), other ledger, newer timeline.
CREATE FUNCTION duly.check_witness(p_ledger_id uuid, p_seq bigint, p_row_id uuid, p_timeline text) RETURNS text
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    WHEN l.id <> p_ledger_id THEN 'other ledger'
    WHEN p_seq IS NOT NULL AND NOT EXISTS (SELECT FROM duly.history h WHERE h.seq = p_seq AND h.row_id = p_row_id) THEN 'lost'
    WHEN left(pg_walfile_name(pg_current_wal_lsn()), 8) <> p_timeline THEN 'newer timeline'
    ELSE 'same' END
  FROM duly.ledger l;
$$;

-- Every operation that could have run in the gap is in doubt: those due by now that the ledger calls not yet called. A
-- stand-in attempt carries the doubt, so that only evidence or a decision resolves it. Bounded; call until it returns 0.
CREATE FUNCTION duly.doubt_gap(p_cause text, p_who text, p_limit int) RETURNS int
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_key text;
  v_op duly.operation;
  v_n int := 0;
BEGIN
  FOR v_key IN SELECT o.key FROM duly.operation o, duly.ledger l WHERE o.state = 'scheduled' AND o.due_at <= l.quarantined_at
      ORDER BY o.due_at LIMIT p_limit LOOP
    v_op := duly._lock(v_key);
    IF v_op.state = 'scheduled' THEN
      PERFORM duly._doubt(v_op, p_who, NULL, p_cause);
      v_n := v_n + 1;
    END IF;
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
  UPDATE duly.ledger SET quarantine = NULL, quarantined_at = NULL;
  RETURN (v_ledger.id::text, 'open', true, 'adopted; what could have run in the gap is unknown, and the rest goes on')::duly.answer;
END $$;
