-- The only clock of the ledger: for due, lease and deadline. clock_timestamp(), so that it is never a time taken
-- before a lock wait. Tests replace this function to move time; no setting that a role could change.
CREATE FUNCTION duly.now() RETURNS timestamptz
  LANGUAGE sql VOLATILE PARALLEL RESTRICTED
  RETURN clock_timestamp();

CREATE TABLE duly.ledger (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  id uuid NOT NULL DEFAULT gen_random_uuid(),      -- part of every idempotency key: a copy cannot act for the original
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  quarantine text,                                 -- why nothing may be sent now; NULL: sending is allowed
  quarantined_at timestamptz,
  timeline text,                                   -- of the server on which workers last served it; NULL: none ever did
  CHECK ((quarantine IS NULL) = (quarantined_at IS NULL))
);
INSERT INTO duly.ledger DEFAULT VALUES;

-- The same names as ledger/states.py.
CREATE DOMAIN duly.state_name AS text CHECK (VALUE IN (
  'scheduled', 'calling', 'accepted', 'unknown', 'blocked', 'delivered', 'rejected', 'expired', 'exhausted',
  'cancelled', 'superseded', 'ineligible', 'abandoned'));

-- Which state may follow which: the same table as ledger/states.py.
CREATE TABLE duly.move (
  before duly.state_name NOT NULL,
  after duly.state_name NOT NULL,
  PRIMARY KEY (before, after)
);
INSERT INTO duly.move
SELECT v.before, unnest(v.after) FROM (VALUES
  ('scheduled', ARRAY['calling','unknown','delivered','accepted','rejected','expired','exhausted','cancelled','superseded','ineligible','blocked']),
  ('calling', ARRAY['delivered','accepted','scheduled','unknown','rejected','expired','exhausted','cancelled','superseded','blocked']),
  ('accepted', ARRAY['delivered','rejected','unknown','abandoned']),
  ('unknown', ARRAY['calling','delivered','accepted','scheduled','rejected','expired','exhausted','cancelled','superseded','blocked','abandoned']),
  ('blocked', ARRAY['scheduled','delivered','accepted','expired','cancelled','superseded','abandoned']),
  -- endings move on by a recorded decision only: reopen (next generation) or correct
  ('delivered', ARRAY['rejected','abandoned']),
  ('rejected', ARRAY['scheduled','delivered']),
  ('expired', ARRAY['scheduled','delivered']),
  ('exhausted', ARRAY['scheduled','delivered']),
  ('cancelled', ARRAY['delivered']),
  ('superseded', ARRAY['delivered']),
  ('ineligible', ARRAY['delivered']),
  ('abandoned', ARRAY['delivered','rejected'])
) AS v(before, after);

-- What follows each outcome: the same table as reconcile/policy.py. The database enforces it, whoever records.
CREATE TABLE duly.rule (
  outcome text PRIMARY KEY,
  "then" text NOT NULL CHECK ("then" IN ('end', 'accepted', 'again', 'unknown', 'block')),
  ends_as duly.state_name,
  counts boolean NOT NULL,                         -- whether it uses up one of the kind's max_attempts
  CHECK (("then" = 'end') = (ends_as IS NOT NULL))
);
INSERT INTO duly.rule VALUES
  ('delivered', 'end', 'delivered', true), ('accepted', 'accepted', NULL, true), ('not_sent', 'again', NULL, false),
  ('not_processed', 'again', NULL, true), ('throttled', 'again', NULL, false), ('in_flight', 'unknown', NULL, true),
  ('unknown', 'unknown', NULL, true), ('duplicate', 'unknown', NULL, true), ('rejected', 'end', 'rejected', true),
  ('denied', 'again', NULL, false), ('key_mismatch', 'block', NULL, true), ('invalid', 'end', 'rejected', true),
  ('defect', 'block', NULL, true);

CREATE TABLE duly.connection (
  name text PRIMARY KEY,
  provider text NOT NULL,
  held text,                                       -- why no call may go out; NULL: not held
  held_at timestamptz,
  not_before timestamptz,                          -- throttled: no call before this time
  CHECK ((held IS NULL) = (held_at IS NULL))
);

-- Copied in from duly.toml (duly.configure), so that SQL can validate and claims need no file.
CREATE TABLE duly.kind (
  name text PRIMARY KEY,
  connection text NOT NULL REFERENCES duly.connection,
  owner text NOT NULL,                             -- who owns its dead list and its alerts
  required text[] NOT NULL,
  max_attempts int NOT NULL CHECK (max_attempts >= 1),
  call_limit interval NOT NULL CHECK (call_limit > interval '0'),
  lease interval NOT NULL,                         -- from the claim to the moment when silence means unknown
  settle interval NOT NULL,                        -- before this, no absence and no "not delivered" is believed
  accepted_bound interval NOT NULL,
  start_lead interval NOT NULL,
  look_ups interval[] NOT NULL,                    -- when to ask the provider about a doubt; the last repeats; none: it cannot be asked
  look_up_lag interval,                            -- after which an effect is visible to a look-up; NULL: not known
  look_up_conclusive boolean NOT NULL,             -- whether absence may ever conclude
  repeat_within interval NOT NULL,                 -- from the first send, for the same bytes with the same key; 0: never
  stores_errors boolean NOT NULL,                  -- a stored error comes back under the key: a repeat is pointless
  second_person boolean NOT NULL,                  -- choices after which something may be sent need an approval
  active boolean NOT NULL DEFAULT true,
  CHECK (NOT look_up_conclusive OR look_up_lag IS NOT NULL),
  CHECK (lease > call_limit)
);

CREATE TABLE duly.subject (
  subject text PRIMARY KEY CHECK (octet_length(subject) BETWEEN 1 AND 200),
  newest_version bigint NOT NULL,
  newest_key text NOT NULL
);

CREATE TABLE duly.operation (
  key text PRIMARY KEY CHECK (octet_length(key) BETWEEN 1 AND 200
    AND key ~ '^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$'),
  kind text NOT NULL REFERENCES duly.kind,
  subject text REFERENCES duly.subject,
  version bigint,
  tenant text,
  payload jsonb NOT NULL CHECK (jsonb_typeof(payload) = 'object'),
  payload_digest text NOT NULL,
  trace_context jsonb,
  due_at timestamptz NOT NULL,
  deadline timestamptz NOT NULL,
  state duly.state_name NOT NULL,
  state_since timestamptz NOT NULL,
  wake_at timestamptz,                             -- the row's alarm clock; NULL: waits for a person only, or ended
  retry_at timestamptz,
  waiting_for text,                                -- what the last instruction waits for; part of an expiry's story
  attempts int NOT NULL DEFAULT 0,                 -- claimed so far; numbered for ever upward
  spent int NOT NULL DEFAULT 0,                    -- of these, how many count against max_attempts
  open_attempts int NOT NULL DEFAULT 0,            -- attempts that are not resolved
  lease_until timestamptz,
  looked int NOT NULL DEFAULT 0,                   -- look-ups made in this doubt
  look_at timestamptz,                             -- when the next one is due
  no_repeat text,                                  -- why this doubt may not be settled by a repeat
  generation int NOT NULL DEFAULT 1,
  epoch int NOT NULL DEFAULT 1,
  stop_requested text,
  pending_decision bigint,                         -- a decision that takes effect at pending_at
  pending_at timestamptz,
  settled_by text CHECK (settled_by IN ('reply', 'look-up', 'person')),
  provider_reference text,
  contradicted boolean NOT NULL DEFAULT false,
  dispatched_at timestamptz,                       -- NULL: no workflow was ever asked for ("fresh")
  redispatches int NOT NULL DEFAULT 0,
  in_hand boolean NOT NULL DEFAULT false,          -- handed to Temporal, nothing heard since
  dispatch_error text,
  ended_at timestamptz,
  created_at timestamptz NOT NULL,
  created_by text NOT NULL DEFAULT session_user,
  UNIQUE (subject, version),
  CHECK ((subject IS NULL) = (version IS NULL)),
  CHECK (deadline > due_at AND isfinite(due_at) AND isfinite(deadline)),
  CHECK (spent BETWEEN 0 AND attempts AND open_attempts BETWEEN 0 AND attempts),
  CONSTRAINT ended_iff_ending CHECK ((ended_at IS NOT NULL) = (state IN
    ('delivered','rejected','expired','exhausted','cancelled','superseded','ineligible','abandoned'))),
  CONSTRAINT ended_never_wakes CHECK (ended_at IS NULL OR (wake_at IS NULL AND NOT in_hand)),
  CONSTRAINT doubt_hides_nothing CHECK (open_attempts = 0
    OR state IN ('calling','accepted','unknown','blocked','delivered','abandoned')),
  CONSTRAINT in_doubt_has_an_open_attempt CHECK (open_attempts > 0 OR state NOT IN ('calling','accepted','unknown')),
  CONSTRAINT in_flight_has_a_bound CHECK (lease_until IS NOT NULL OR state NOT IN ('calling','accepted')),
  CONSTRAINT nothing_is_forgotten CHECK (wake_at IS NOT NULL OR ended_at IS NOT NULL
    OR state = 'blocked' OR (state = 'unknown' AND pending_at IS NULL AND look_at IS NULL)),
  CONSTRAINT delivered_is_settled CHECK ((settled_by IS NOT NULL) = (state = 'delivered')),
  CONSTRAINT pending_has_time CHECK ((pending_decision IS NULL) = (pending_at IS NULL)),
  CONSTRAINT looked_at_in_doubt CHECK (look_at IS NULL OR state IN ('accepted', 'unknown'))
);
-- The sweep's index: neither future rows nor finished ones are on its path.
CREATE INDEX operation_wake ON duly.operation (wake_at) WHERE wake_at IS NOT NULL;
-- What a released connection wakes.
CREATE INDEX operation_waiting ON duly.operation (waiting_for) WHERE waiting_for IS NOT NULL AND state IN ('scheduled', 'unknown');
CREATE INDEX operation_not_started ON duly.operation (dispatched_at) WHERE dispatch_error IS NOT NULL;
CREATE INDEX operation_in_hand ON duly.operation (dispatched_at) WHERE in_hand;
CREATE INDEX operation_attention ON duly.operation (state, state_since)
  WHERE state IN ('calling', 'accepted', 'unknown', 'blocked');
CREATE INDEX operation_dead ON duly.operation (ended_at) WHERE state IN ('rejected', 'exhausted', 'expired');
CREATE INDEX operation_contradicted ON duly.operation (key) WHERE contradicted;

CREATE TABLE duly.attempt (
  key text NOT NULL REFERENCES duly.operation,
  number int NOT NULL CHECK (number >= 1),
  token uuid NOT NULL UNIQUE,
  generation int NOT NULL,
  epoch int NOT NULL,
  worker text NOT NULL,
  run_id text,
  activity_id text,
  idempotency_key text NOT NULL,
  scope text NOT NULL,                             -- what the idempotency key is unique within
  rendering text,                                  -- how bytes were made: the same rendering, key and payload are the same bytes
  claimed_at timestamptz NOT NULL,
  send_before timestamptz NOT NULL,
  lease_until timestamptz NOT NULL,
  outcome text REFERENCES duly.rule,               -- NULL: in flight, or died there
  recorded_at timestamptz,
  sent boolean,                                    -- whether a request header may have left this machine
  status_code int,
  provider_reference text,
  detail text,
  request_digest text,
  call_ms double precision,
  resolved_at timestamptz,                         -- NULL: it is not settled what this attempt did
  resolved_by text,
  effect boolean,                                  -- what is believed of it: an effect, none; NULL: not known of this one
  PRIMARY KEY (key, number),
  CHECK ((outcome IS NULL) = (recorded_at IS NULL)),
  CHECK ((resolved_at IS NULL) = (resolved_by IS NULL)),
  CHECK (resolved_at IS NOT NULL OR effect IS NULL)
);

CREATE TABLE duly.history (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  row_id uuid NOT NULL DEFAULT gen_random_uuid(),
  key text NOT NULL REFERENCES duly.operation,
  at timestamptz NOT NULL,
  before duly.state_name,               -- NULL: scheduled now
  after duly.state_name NOT NULL,
  who text NOT NULL,
  db_user text NOT NULL DEFAULT session_user,
  why text NOT NULL,
  attempt int,
  detail jsonb
);
CREATE INDEX history_key ON duly.history (key, seq);

CREATE TABLE duly.evidence (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text NOT NULL REFERENCES duly.operation,
  attempt int,
  source text NOT NULL,                            -- late reply, look-up, signal, refused decision, ...
  finding text NOT NULL,
  detail jsonb,
  who text NOT NULL,
  db_user text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL
);
CREATE INDEX evidence_key ON duly.evidence (key, id);

CREATE TABLE duly.decision (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text NOT NULL REFERENCES duly.operation,
  choice text NOT NULL,
  reason text NOT NULL,
  reference text,
  deadline timestamptz,                            -- extend, reopen: the new one
  ending text,                                     -- correct: what the evidence shows
  evidence jsonb,
  state_seen text NOT NULL,
  attempt_seen int NOT NULL,
  decided_by text NOT NULL DEFAULT session_user,   -- the database's own name for who it is, never a claim
  by_right text NOT NULL,                          -- operator, owner, temporal, or proposal (no right at all)
  needs_approval boolean NOT NULL DEFAULT false,
  label text,                                      -- a name that somebody gave; a label, never a right
  at timestamptz NOT NULL,
  effective_at timestamptz NOT NULL
);
CREATE INDEX decision_key ON duly.decision (key, id);
CREATE INDEX decision_approval ON duly.decision (id) WHERE needs_approval;

-- The second person's word on a decision, or an operator's on a proposal.
CREATE TABLE duly.approval (
  decision bigint PRIMARY KEY REFERENCES duly.decision,
  approved_by text NOT NULL DEFAULT session_user,
  by_right text NOT NULL,
  reason text NOT NULL,
  at timestamptz NOT NULL
);

-- An owner's word after a restore.
CREATE TABLE duly.adoption (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  quarantine text NOT NULL,
  quarantined_at timestamptz NOT NULL,
  reason text NOT NULL,
  adopted_by text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL
);

-- A frozen list of what a bulk decision would do; applied by its number, item by item.
CREATE TABLE duly.plan (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  choice text NOT NULL,
  reason text NOT NULL,
  deadline timestamptz,
  selection jsonb NOT NULL,
  made_by text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL
);
CREATE TABLE duly.plan_item (
  plan bigint NOT NULL REFERENCES duly.plan,
  key text NOT NULL REFERENCES duly.operation,
  state_seen text NOT NULL,
  attempt_seen int NOT NULL,
  generation_seen int NOT NULL,
  evidence_seen text,
  consequence text NOT NULL,
  PRIMARY KEY (plan, key)
);
CREATE TABLE duly.plan_result (
  plan bigint NOT NULL,
  key text NOT NULL,
  done boolean NOT NULL,
  answer text NOT NULL,
  decision bigint REFERENCES duly.decision,
  applied_by text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL,
  PRIMARY KEY (plan, key),
  FOREIGN KEY (plan, key) REFERENCES duly.plan_item
);
ALTER TABLE duly.operation ADD FOREIGN KEY (pending_decision) REFERENCES duly.decision;
