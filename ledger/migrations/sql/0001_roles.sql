-- Roles are cluster-wide and may exist already. No superuser is needed: CREATEROLE is enough.
-- duly_ledger owns every object and nobody logs in as it; the other five are what people and programs are granted.
DO $$
DECLARE
  v_role text;
BEGIN
  FOREACH v_role IN ARRAY ARRAY['duly_ledger', 'duly_app', 'duly_worker', 'duly_operator', 'duly_owner', 'duly_reader'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = v_role) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
      EXCEPTION
        WHEN duplicate_object OR unique_violation THEN NULL;  -- another migration of this cluster was faster
        WHEN insufficient_privilege THEN
          RAISE EXCEPTION 'role % does not exist and % may not create it', v_role, current_user
            USING HINT = format('As an administrator: CREATE ROLE %I NOLOGIN; then migrate again.', v_role);
      END;
    END IF;
  END LOOP;
  BEGIN
    -- Since Postgres 16 whoever creates a role may administer it, but not act as it, until that is granted.
    EXECUTE format('GRANT duly_ledger TO %I', current_user);
  EXCEPTION
    WHEN insufficient_privilege THEN NULL;         -- an administrator granted it, or SET ROLE below says what is missing
  END;
END $$;

CREATE SCHEMA IF NOT EXISTS duly;
ALTER SCHEMA duly OWNER TO duly_ledger;
GRANT USAGE ON SCHEMA duly TO duly_app, duly_worker, duly_operator, duly_owner, duly_reader;
SET LOCAL ROLE duly_ledger;
-- Functions are executable by everybody unless said otherwise: here nothing is, unless 0001_grants.sql says so.
ALTER DEFAULT PRIVILEGES FOR ROLE duly_ledger REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
