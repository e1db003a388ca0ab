-- What needs somebody. Commands, metrics and monitors read this view and nothing else.
CREATE VIEW duly.alerts AS
  SELECT o.state AS alert, o.key AS name, o.kind, k.owner, o.state_since AS since,
    CASE WHEN o.pending_decision IS NOT NULL THEN 'decision ' || o.pending_decision || ' takes effect at ' || duly._utc(o.pending_at)
      ELSE (SELECT h.why FROM duly.history h WHERE h.key = o.key ORDER BY h.seq DESC LIMIT 1) END AS why
    FROM duly.operation o JOIN duly.kind k ON k.name = o.kind WHERE o.state IN ('unknown', 'blocked')
  UNION ALL
  SELECT 'contradicted', o.key, o.kind, k.owner, o.state_since, 'evidence contradicts the ending ' || o.state
    FROM duly.operation o JOIN duly.kind k ON k.name = o.kind WHERE o.contradicted
  UNION ALL
  SELECT 'late', o.key, o.kind, k.owner, o.wake_at, coalesce(o.dispatch_error, 'due for over a minute and not handed over')
    FROM duly.operation o JOIN duly.kind k ON k.name = o.kind WHERE o.wake_at < (SELECT duly.now() - interval '1 minute')
  UNION ALL
  SELECT 'not started', o.key, o.kind, k.owner, o.dispatched_at, o.dispatch_error
    FROM duly.operation o JOIN duly.kind k ON k.name = o.kind
    WHERE o.dispatch_error IS NOT NULL AND o.ended_at IS NULL AND o.wake_at >= (SELECT duly.now() - interval '1 minute')
  UNION ALL
  SELECT 'approval', d.key, o.kind, k.owner, d.at, d.choice || ' proposed by ' || coalesce(d.label, d.decided_by) || ': ' || d.reason
    FROM duly.decision d JOIN duly.operation o ON o.key = d.key JOIN duly.kind k ON k.name = o.kind
    WHERE d.needs_approval AND NOT EXISTS (SELECT FROM duly.approval a WHERE a.decision = d.id)
      AND o.state = d.state_seen AND o.attempts = d.attempt_seen AND o.state_since <= d.at
  UNION ALL
  SELECT 'connection held', c.name, NULL, NULL, c.held_at, c.held FROM duly.connection c WHERE c.held IS NOT NULL
  UNION ALL
  SELECT 'quarantine', l.id::text, NULL, NULL, l.quarantined_at, l.quarantine FROM duly.ledger l WHERE l.quarantine IS NOT NULL;

-- What each of these operations waits for, and when its bytes may be sent again with the same key (NULL: why not).
CREATE TYPE duly.outlook AS (key text, act text, reason text, repeat_at timestamptz, no_repeat text);
CREATE FUNCTION duly.outlook(keys text[]) RETURNS SETOF duly.outlook
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT o.key, s.act, s.reason, r.at, r.why
  FROM duly.operation o, LATERAL duly._next(o, duly.now()) s, LATERAL duly._repeat_at(o) r WHERE o.key = ANY (outlook.keys);
$$;

-- Copies duly.toml's kinds and connections in. Kinds that are gone stay for their operations, but accept no new ones.
CREATE FUNCTION duly.configure(p_kinds jsonb, p_connections jsonb) RETURNS void
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO duly.connection AS c (name, provider)
    SELECT x.name, x.provider FROM jsonb_to_recordset(p_connections) AS x(name text, provider text)
    ON CONFLICT (name) DO UPDATE SET provider = EXCLUDED.provider;
  UPDATE duly.kind SET active = false WHERE active;
  INSERT INTO duly.kind AS k (name, connection, owner, required, max_attempts, call_limit, lease, settle, accepted_bound, start_lead,
      look_ups, look_up_lag, look_up_conclusive, repeat_within, stores_errors, second_person)
    SELECT x.name, x.connection, x.owner, x.required, x.max_attempts, x.call_limit * interval '1 second', x.lease * interval '1 second',
      x.settle * interval '1 second', x.accepted_bound * interval '1 second', x.start_lead * interval '1 second',
      ARRAY(SELECT s * interval '1 second' FROM unnest(x.look_ups) WITH ORDINALITY AS u(s, n) ORDER BY n), x.look_up_lag * interval '1 second',
      x.look_up_conclusive, x.repeat_within * interval '1 second', x.stores_errors, x.second_person
    FROM jsonb_to_recordset(p_kinds) AS x(name text, connection text, owner text, required text[], max_attempts int,
      call_limit double precision, lease double precision, settle double precision, accepted_bound double precision, start_lead double precision,
      look_ups double precision[], look_up_lag double precision, look_up_conclusive boolean, repeat_within double precision,
      stores_errors boolean, second_person boolean)
    ON CONFLICT (name) DO UPDATE SET connection = EXCLUDED.connection, owner = EXCLUDED.owner, required = EXCLUDED.required,
      max_attempts = EXCLUDED.max_attempts, call_limit = EXCLUDED.call_limit, lease = EXCLUDED.lease, settle = EXCLUDED.settle,
      accepted_bound = EXCLUDED.accepted_bound, start_lead = EXCLUDED.start_lead, look_ups = EXCLUDED.look_ups, look_up_lag = EXCLUDED.look_up_lag,
      look_up_conclusive = EXCLUDED.look_up_conclusive, repeat_within = EXCLUDED.repeat_within,
      stores_errors = EXCLUDED.stores_errors, second_person = EXCLUDED.second_person, active = true;
END $$;
