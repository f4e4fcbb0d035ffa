-- What Metabase sends to a database PostgreSQL; no program of Metabase's is here, only the statements.
--
-- Source:
-- * The statements of a sync and of one question: a published capture of Metabase 0.62.1.5 against
--   PostgreSQL 16, with its parameters; those of Metabase 0.55.1 are alike
--   (github.com/datafusion-contrib/datafusion-postgres, datafusion-postgres/tests/metabase.rs, commit
--   3822718f7d00).  The texts agree with github.com/metabase/metabase, src/metabase/driver/postgres.clj
--   (commit 008fd6675457), read in a stored copy.
-- * Those that are marked "by the rules": what that file's rules make of a question; not captured.
-- The tables are those of the tests.  All come by pgjdbc, in the extended protocol; its parameters are
-- texts (varchar) and int8.

-- name: select_one
SELECT 1

-- name: catalog
select current_catalog

-- name: isolation
SHOW TRANSACTION ISOLATION LEVEL

-- name: read_uncommitted
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ UNCOMMITTED

-- name: read_committed
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: application_name
SET application_name = 'Metabase v0.62.1.5 [d4fe74c4-96c3-4812-b3ae-35e513752b13]'

-- name: schemas
SELECT nspname AS "TABLE_SCHEM", current_database() AS "TABLE_CATALOG" FROM pg_catalog.pg_namespace  WHERE nspname <> 'pg_toast' AND (nspname !~ '^pg_temp_'  OR nspname = (pg_catalog.current_schemas(true))[1]) AND (nspname !~ '^pg_toast_temp_'  OR nspname = replace((pg_catalog.current_schemas(true))[1], 'pg_temp_', 'pg_toast_temp_'))  ORDER BY "TABLE_SCHEM"

-- name: privileges
with table_privileges as (
	 select
	   NULL as role,
	   t.schemaname as schema,
	   t.objectname as table,
	   pg_catalog.has_any_column_privilege(current_user, '"' || replace(t.schemaname, '"', '""') || '"' || '.' || '"' || replace(t.objectname, '"', '""') || '"',  'update') as update,
	   pg_catalog.has_any_column_privilege(current_user, '"' || replace(t.schemaname, '"', '""') || '"' || '.' || '"' || replace(t.objectname, '"', '""') || '"',  'select') as select,
	   pg_catalog.has_any_column_privilege(current_user, '"' || replace(t.schemaname, '"', '""') || '"' || '.' || '"' || replace(t.objectname, '"', '""') || '"',  'insert') as insert,
	   pg_catalog.has_table_privilege(     current_user, '"' || replace(t.schemaname, '"', '""') || '"' || '.' || '"' || replace(t.objectname, '"', '""') || '"',  'delete') as delete
	 from (
	   select schemaname, tablename as objectname from pg_catalog.pg_tables
	   union
	   select schemaname, viewname as objectname from pg_catalog.pg_views
	   union
	   select schemaname, matviewname as objectname from pg_catalog.pg_matviews
	 ) t
	 where t.schemaname !~ '^pg_'
	   and t.schemaname <> 'information_schema'
	   and pg_catalog.has_schema_privilege(current_user, t.schemaname, 'usage')
	)
	select t.*
	from table_privileges t

-- name: tables
-- parameters: [0, 0, "^pg_", "information_schema", "public"]
SELECT "n"."nspname" AS "schema", "c"."relname" AS "name", CASE "c"."relkind" WHEN 'r' THEN 'TABLE' WHEN 'p' THEN 'PARTITIONED TABLE' WHEN 'v' THEN 'VIEW' WHEN 'f' THEN 'FOREIGN TABLE' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE NULL END AS "type", "d"."description" AS "description", NULLIF("stat"."n_live_tup", $1) AS "estimated_row_count" FROM "pg_catalog"."pg_class" AS "c" INNER JOIN "pg_catalog"."pg_namespace" AS "n" ON "c"."relnamespace" = "n"."oid" LEFT JOIN "pg_catalog"."pg_description" AS "d" ON ("c"."oid" = "d"."objoid") AND ("d"."objsubid" = $2) AND ("d"."classoid" = 'pg_class'::regclass) LEFT JOIN "pg_stat_user_tables" AS "stat" ON ("n"."nspname" = "stat"."schemaname") AND ("c"."relname" = "stat"."relname") WHERE ("c"."relnamespace" = "n"."oid") AND ("n"."nspname" !~ $3) AND ("n"."nspname" <> $4) AND c.relkind in ('r', 'p', 'v', 'f', 'm') AND ("n"."nspname" IN ($5)) ORDER BY "type" ASC, "schema" ASC, "name" ASC

-- name: time_zone
show timezone

-- name: enums
SELECT nspname, typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid IN (SELECT DISTINCT enumtypid FROM pg_enum e)

-- name: fields
-- parameters: ["ALWAYS", "public", "public"]
SELECT "c"."column_name" AS "name", CASE WHEN "c"."udt_schema" IN ('public', 'pg_catalog') THEN FORMAT('%s', "c"."udt_name") ELSE FORMAT('"%s"."%s"', "c"."udt_schema", "c"."udt_name") END AS "database-type", "c"."ordinal_position" - 1 AS "database-position", "c"."table_schema" AS "table-schema", "c"."table_name" AS "table-name", "pk"."column_name" IS NOT NULL AS "pk?", COL_DESCRIPTION(CAST(CAST(FORMAT('%I.%I', CAST("c"."table_schema" AS TEXT), CAST("c"."table_name" AS TEXT)) AS REGCLASS) AS OID), "c"."ordinal_position") AS "field-comment", (("column_default" IS NULL) OR (LOWER("column_default") = 'null')) AND ("is_nullable" = 'NO') AND NOT ((("column_default" IS NOT NULL) AND ("column_default" LIKE '%nextval(%')) OR ("is_identity" <> 'NO')) AS "database-required", "column_default" AS "database-default", (("column_default" IS NOT NULL) AND ("column_default" LIKE '%nextval(%')) OR ("is_identity" <> 'NO') AS "database-is-auto-increment", "is_generated" = $1 AS "database-is-generated", "is_nullable" = 'YES' AS "database-is-nullable" FROM "information_schema"."columns" AS "c" LEFT JOIN (SELECT "tc"."table_schema", "tc"."table_name", "kc"."column_name" FROM "information_schema"."table_constraints" AS "tc" INNER JOIN "information_schema"."key_column_usage" AS "kc" ON ("tc"."constraint_name" = "kc"."constraint_name") AND ("tc"."table_schema" = "kc"."table_schema") AND ("tc"."table_name" = "kc"."table_name") WHERE "tc"."constraint_type" = 'PRIMARY KEY') AS "pk" ON ("c"."table_schema" = "pk"."table_schema") AND ("c"."table_name" = "pk"."table_name") AND ("c"."column_name" = "pk"."column_name") WHERE c.table_schema !~ '^information_schema|catalog_history|pg_' AND ("c"."table_schema" IN ($2)) UNION ALL SELECT "pa"."attname" AS "name", CASE WHEN "ptn"."nspname" IN ('public', 'pg_catalog') THEN FORMAT('%s', "pt"."typname") ELSE FORMAT('"%s"."%s"', "ptn"."nspname", "pt"."typname") END AS "database-type", "pa"."attnum" - 1 AS "database-position", "pn"."nspname" AS "table-schema", "pc"."relname" AS "table-name", FALSE AS "pk?", NULL AS "field-comment", FALSE AS "database-required", NULL AS "database-default", FALSE AS "database-is-auto-increment", FALSE AS "database-is-generated", FALSE AS "database-is-nullable" FROM "pg_catalog"."pg_class" AS "pc" INNER JOIN "pg_catalog"."pg_namespace" AS "pn" ON "pn"."oid" = "pc"."relnamespace" INNER JOIN "pg_catalog"."pg_attribute" AS "pa" ON "pa"."attrelid" = "pc"."oid" INNER JOIN "pg_catalog"."pg_type" AS "pt" ON "pt"."oid" = "pa"."atttypid" INNER JOIN "pg_catalog"."pg_namespace" AS "ptn" ON "ptn"."oid" = "pt"."typnamespace" WHERE ("pc"."relkind" = 'm') AND ("pa"."attnum" >= 1) AND ("pn"."nspname" IN ($3)) ORDER BY "table-schema" ASC, "table-name" ASC, "database-position" ASC

-- name: columns
-- note: getColumns of pgjdbc
-- parameters: ["public", "{table}"]
SELECT * FROM (SELECT current_database() AS current_database, n.nspname,c.relname,a.attname,a.atttypid,a.attnotnull  OR (t.typtype = 'd' AND t.typnotnull) AS attnotnull,a.atttypmod,a.attlen,t.typtypmod,row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum) AS attnum, nullif(a.attidentity, '') as attidentity,nullif(a.attgenerated, '') as attgenerated,pg_catalog.pg_get_expr(def.adbin, def.adrelid) AS adsrc,dsc.description,t.typbasetype,t.typtype  FROM pg_catalog.pg_namespace n  JOIN pg_catalog.pg_class c ON (c.relnamespace = n.oid)  JOIN pg_catalog.pg_attribute a ON (a.attrelid=c.oid)  JOIN pg_catalog.pg_type t ON (a.atttypid = t.oid)  LEFT JOIN pg_catalog.pg_attrdef def ON (a.attrelid=def.adrelid AND a.attnum = def.adnum)  LEFT JOIN pg_catalog.pg_description dsc ON (c.oid=dsc.objoid AND a.attnum = dsc.objsubid)  LEFT JOIN pg_catalog.pg_class dc ON (dc.oid=dsc.classoid AND dc.relname='pg_class')  LEFT JOIN pg_catalog.pg_namespace dn ON (dc.relnamespace=dn.oid AND dn.nspname='pg_catalog')  WHERE c.relkind in ('r','p','v','f','m') and a.attnum > 0 AND NOT a.attisdropped  AND n.nspname LIKE $1 AND c.relname LIKE $2) c WHERE true  ORDER BY nspname,c.relname,attnum

-- name: primary_key
-- note: getPrimaryKeys of pgjdbc
-- parameters: ["public", "{table}"]
SELECT        result.TABLE_CAT AS "TABLE_CAT",        result.TABLE_SCHEM AS "TABLE_SCHEM",        result.TABLE_NAME AS "TABLE_NAME",        result.COLUMN_NAME AS "COLUMN_NAME",        result.KEY_SEQ AS "KEY_SEQ",        result.PK_NAME AS "PK_NAME"FROM      (SELECT current_database() AS TABLE_CAT, n.nspname AS TABLE_SCHEM,   ct.relname AS TABLE_NAME, a.attname AS COLUMN_NAME,   (information_schema._pg_expandarray(i.indkey)).n AS KEY_SEQ, ci.relname AS PK_NAME,   information_schema._pg_expandarray(i.indkey) AS KEYS, a.attnum AS A_ATTNUM, i.indnkeyatts as KEY_COUNT FROM pg_catalog.pg_class ct   JOIN pg_catalog.pg_attribute a ON (ct.oid = a.attrelid)   JOIN pg_catalog.pg_namespace n ON (ct.relnamespace = n.oid)   JOIN pg_catalog.pg_index i ON ( a.attrelid = i.indrelid)   JOIN pg_catalog.pg_class ci ON (ci.oid = i.indexrelid) WHERE true  AND n.nspname = $1 AND ct.relname = $2 AND i.indisprimary  ) result where  result.A_ATTNUM = (result.KEYS).x AND result.KEY_SEQ <= KEY_COUNT  ORDER BY result.table_name, result.pk_name, result.key_seq

-- name: foreign_keys
-- parameters: ["public"]
SELECT "fk_ns"."nspname" AS "fk-table-schema", "fk_table"."relname" AS "fk-table-name", "fk_column"."attname" AS "fk-column-name", "pk_ns"."nspname" AS "pk-table-schema", "pk_table"."relname" AS "pk-table-name", "pk_column"."attname" AS "pk-column-name" FROM "pg_constraint" AS "c" INNER JOIN "pg_class" AS "fk_table" ON "c"."conrelid" = "fk_table"."oid" INNER JOIN "pg_namespace" AS "fk_ns" ON "c"."connamespace" = "fk_ns"."oid" INNER JOIN "pg_attribute" AS "fk_column" ON "c"."conrelid" = "fk_column"."attrelid" INNER JOIN "pg_class" AS "pk_table" ON "c"."confrelid" = "pk_table"."oid" INNER JOIN "pg_namespace" AS "pk_ns" ON "pk_table"."relnamespace" = "pk_ns"."oid" INNER JOIN "pg_attribute" AS "pk_column" ON "c"."confrelid" = "pk_column"."attrelid" WHERE fk_ns.nspname !~ '^information_schema|catalog_history|pg_' AND ("c"."contype" = 'f'::char) AND ("fk_column"."attnum" = ANY(c.conkey)) AND ("pk_column"."attnum" = ANY(c.confkey)) AND ("fk_ns"."nspname" IN ($1)) ORDER BY "fk-table-schema" ASC, "fk-table-name" ASC

-- name: columns_of_answer
-- note: getColumns of an answer, by pgjdbc; {oid} is the table's
SELECT c.oid, a.attnum, a.attname, c.relname, n.nspname, a.attnotnull OR (t.typtype = 'd' AND t.typnotnull), a.attidentity != '' OR pg_catalog.pg_get_expr(d.adbin, d.adrelid) LIKE '%nextval(%' FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON (c.relnamespace = n.oid) JOIN pg_catalog.pg_attribute a ON (c.oid = a.attrelid) JOIN pg_catalog.pg_type t ON (a.atttypid = t.oid) LEFT JOIN pg_catalog.pg_attrdef d ON (d.adrelid = a.attrelid AND d.adnum = a.attnum) JOIN (SELECT {oid} AS oid , 1 AS attnum UNION ALL SELECT {oid}, 2 UNION ALL SELECT {oid}, 3) vals ON (c.oid = vals.oid AND a.attnum = vals.attnum) where c.oid in ({oid})

-- name: probe
-- note: describe_database.clj of Metabase, before 0.49
SELECT TRUE AS "_" FROM "public"."long" WHERE 1 <> 1 LIMIT 0

-- name: sample_texts
-- note: the capture has a column of texts
-- Metabase
	SELECT SUBSTRING("public"."price"."again"::text, 1, 1234) AS "substring4476" FROM "public"."price" LIMIT 10000

-- name: sample
-- Metabase
	SELECT "public"."timestamp"."k" AS "k", "public"."timestamp"."n" AS "n", "public"."timestamp"."again" AS "again" FROM "public"."timestamp" LIMIT 10000

-- name: question_count
-- Metabase:: userID: 1 queryType: MBQL queryHash: a54de39466cbf3e82ff09c5a9a2bccf1f922bf9fd59b2717c1ad5e09a1c0bfbc
	SELECT COUNT(*) AS "count" FROM "public"."long"

-- name: question_by_month
-- note: by the rules
SELECT DATE_TRUNC('month', "public"."timestamp"."k") AS "k", COUNT(*) AS "count" FROM "public"."timestamp" GROUP BY DATE_TRUNC('month', "public"."timestamp"."k") ORDER BY DATE_TRUNC('month', "public"."timestamp"."k") ASC

-- name: question_by_day
-- note: by the rules
SELECT CAST("public"."timestamp_ntz"."k" AS date) AS "k", COUNT(*) AS "count" FROM "public"."timestamp_ntz" GROUP BY CAST("public"."timestamp_ntz"."k" AS date) ORDER BY CAST("public"."timestamp_ntz"."k" AS date) ASC

-- name: question_by_day_with_zone
-- note: by the rules
SELECT CAST("public"."timestamp"."k" AS date) AS "k", COUNT(*) AS "count" FROM "public"."timestamp" GROUP BY CAST("public"."timestamp"."k" AS date) ORDER BY CAST("public"."timestamp"."k" AS date) ASC

-- name: question_by_week
-- note: by the rules
SELECT CAST(DATE_TRUNC('week', ("public"."date"."k" + INTERVAL '1 day')) AS date) + INTERVAL '-1 day' AS "k", COUNT(*) AS "count" FROM "public"."date" GROUP BY 1 ORDER BY 1

-- name: question_by_hour_of_day
-- note: by the rules
SELECT CAST(EXTRACT(hour FROM "public"."timestamp"."k") AS integer) AS "k", COUNT(*) AS "count", SUM("public"."timestamp"."n") AS "sum" FROM "public"."timestamp" WHERE "public"."timestamp"."k" < 'infinity' GROUP BY CAST(EXTRACT(hour FROM "public"."timestamp"."k") AS integer) ORDER BY CAST(EXTRACT(hour FROM "public"."timestamp"."k") AS integer)

-- name: question_by_parts
-- note: by the rules
SELECT CAST(EXTRACT(second FROM "k") AS integer) AS "second", CAST(EXTRACT(dow FROM "k") AS integer) + 1 AS "dow", CAST(EXTRACT(doy FROM "k") AS integer) AS "doy", CAST(EXTRACT(week FROM "k") AS integer) AS "week", CAST(EXTRACT(quarter FROM "k") AS integer) AS "quarter" FROM "public"."timestamp_ntz" ORDER BY "k"

-- name: question_bins
-- note: by the rules
SELECT FLOOR((("public"."long"."n" - 0.0) / 10.0)) * 10.0 + 0.0 AS "n", COUNT(*) AS "count" FROM "public"."long" GROUP BY FLOOR((("public"."long"."n" - 0.0) / 10.0)) * 10.0 + 0.0 ORDER BY 1

-- name: question_numbers
-- note: by the rules
SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY "public"."long"."n") AS "median", STDDEV_POP("n") AS "stddev", COUNT(DISTINCT "n") AS "distinct", SUM(CASE WHEN "n" > 1 THEN 1 ELSE 0.0 END) AS "share" FROM "public"."long"

-- name: question_in_tokyo
-- note: by the rules
SELECT timezone('Asia/Tokyo', "public"."timestamp"."k") AS "k" FROM "public"."timestamp" WHERE "k" < 'infinity' ORDER BY 1

-- name: question_seconds_between
-- note: by the rules
SELECT CAST(TRUNC(EXTRACT(epoch FROM "again") - EXTRACT(epoch FROM timestamp '2026-03-01 10:30')) AS integer) AS "seconds" FROM "public"."timestamp_ntz" WHERE "k" < '9999-01-01'

-- name: question_years_between
-- note: by the rules
SELECT CAST(EXTRACT(year FROM AGE(DATE_TRUNC('day', "k"), DATE_TRUNC('day', timestamp '2020-04-02 10:30'))) AS integer) AS "years" FROM "public"."timestamp_ntz" WHERE "k" < '9999-01-01'

-- name: question_days_between
-- note: by the rules
SELECT CAST("k" AS DATE) - CAST(timestamp '2020-03-02 10:30' AS DATE) AS "days" FROM "public"."timestamp_ntz" WHERE "k" < '9999-01-01'

-- name: question_last_days
-- note: by the rules
SELECT COUNT(*) AS "count" FROM "public"."timestamp" WHERE "k" >= DATE_TRUNC('day', (NOW() + INTERVAL '-30 day')) AND "k" < DATE_TRUNC('day', NOW())

-- name: question_filter
-- note: by the rules
-- parameters: ["timestamptz 2026-03-01 00:00:00+01", "timestamptz 2026-04-01 00:00:00+02", 2]
SELECT "public"."timestamp"."k" AS "k", "public"."timestamp"."n" AS "n" FROM "public"."timestamp" WHERE ("public"."timestamp"."k" >= $1) AND ("public"."timestamp"."k" < $2) AND ("public"."timestamp"."n" = $3) LIMIT 1048575
