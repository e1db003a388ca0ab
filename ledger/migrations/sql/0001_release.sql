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
    SELECT o.key FROM duly.operation o WHERE o.state IN ('scheduled', 'unknown') AND o.waiting_for IN
      ('connection ' || v_connection.name || ' is held', 'connection ' || v_connection.name || ' is throttled')
    FOR UPDATE SKIP LOCKED),
  -- One goes first; the rest follow after five seconds, fifty a second, so that a connection that is not mended after
  -- all is held again by one call and not by a thousand.
  spread AS (
    SELECT w.key, CASE row_number() OVER (ORDER BY w.key) WHEN 1 THEN interval '0'
      ELSE interval '5 seconds' + row_number() OVER (ORDER BY w.key) * interval '20 milliseconds' END AS delay FROM waiting w),
  woken AS (
    UPDATE duly.operation o SET wake_at = duly.now() + s.delay, waiting_for = NULL,
      retry_at = CASE WHEN o.state = 'scheduled' THEN o.retry_at END FROM spread s WHERE o.key = s.key
    RETURNING o.key, o.state, o.attempts)
  INSERT INTO duly.history (key, at, before, after, who, why, attempt)
    SELECT w.key, duly.now(), w.state, w.state, session_user,
      'connection ' || v_connection.name || ' released: ' || release_connection.reason, nullif(w.attempts, 0) FROM woken w;
  RETURN (v_connection.name, 'open', true, 'released')::duly.answer;
END $$;
