-- What Grafana's data source PostgreSQL sends; no program of Grafana's is here, only the statements.
--
-- Source: github.com/grafana/grafana, read in stored copies.
-- * The editor's: public/app/plugins/datasource/grafana-postgresql-datasource/postgresMetaQuery.ts
--   (commit 12f912ab8d01).
-- * Macros, as they are written out: pkg/tsdb/grafana-postgresql-datasource/macros.go (commit
--   02ab314b81e2), in statements of postgres_pgx_test.go (commit 1ae69250efd6) and of the cheat sheet
--   and the builder, over the tables of the tests.
-- All are sent as one message Query, without parameters, by lib/pq 1.10.9 and by pgx 5.7.5 (a
-- recording of both: test_recorded.py).
--
-- {table} stands for the name of a table as the list of tables has it, in single quotes.

-- name: version
SELECT current_setting('server_version_num')::int/100 as version

-- name: timescaledb
SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'

-- name: schemas
SELECT schema_name AS "name"
    FROM information_schema.schemata
    WHERE schema_name NOT IN ('information_schema',
                              'pg_catalog',
                              'pg_toast',
                              '_timescaledb_cache',
                              '_timescaledb_catalog',
                              '_timescaledb_internal',
                              '_timescaledb_config',
                              'timescaledb_information',
                              'timescaledb_experimental')
    ORDER BY schema_name

-- name: tables_of_schema
SELECT quote_ident(table_name) AS "table"
      FROM information_schema.tables
      WHERE quote_ident(table_schema) = 'public'
      ORDER BY 1

-- name: tables
SELECT
    CASE WHEN 
          quote_ident(table_schema) IN (
          SELECT
            CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
          FROM
            generate_series(
              array_lower(string_to_array(current_setting('search_path'),','),1),
              array_upper(string_to_array(current_setting('search_path'),','),1)
            ) as i,
            string_to_array(current_setting('search_path'),',') s
          )
      THEN quote_ident(table_name)
      ELSE quote_ident(table_schema) || '.' || quote_ident(table_name)
    END AS "table"
    FROM information_schema.tables
    WHERE quote_ident(table_schema) NOT IN ('information_schema',
                             'pg_catalog',
                             '_timescaledb_cache',
                             '_timescaledb_catalog',
                             '_timescaledb_internal',
                             '_timescaledb_config',
                             'timescaledb_information',
                             'timescaledb_experimental')
    ORDER BY CASE WHEN 
          quote_ident(table_schema) IN (
          SELECT
            CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
          FROM
            generate_series(
              array_lower(string_to_array(current_setting('search_path'),','),1),
              array_upper(string_to_array(current_setting('search_path'),','),1)
            ) as i,
            string_to_array(current_setting('search_path'),',') s
          ) THEN 0 ELSE 1 END, 1

-- name: columns
SELECT quote_ident(column_name) AS "column", data_type AS "type"
    FROM information_schema.columns
    WHERE
      CASE WHEN array_length(parse_ident({table}),1) = 2
        THEN quote_ident(table_schema) = (parse_ident({table}))[1]
          AND quote_ident(table_name) = (parse_ident({table}))[2]
        ELSE quote_ident(table_name) = {table}
          AND 
          quote_ident(table_schema) IN (
          SELECT
            CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
          FROM
            generate_series(
              array_lower(string_to_array(current_setting('search_path'),','),1),
              array_upper(string_to_array(current_setting('search_path'),','),1)
            ) as i,
            string_to_array(current_setting('search_path'),',') s
          )
      END

-- name: time
SELECT k AS "time", n FROM timestamp WHERE k BETWEEN '1969-03-01T00:00:00Z' AND '2026-03-02T00:00:00.123Z' ORDER BY 1

-- name: time_of_date
SELECT k AS "time", n FROM date WHERE k BETWEEN '2026-03-01T00:00:00Z' AND '2026-03-02T00:00:00.123Z' LIMIT 50 

-- name: time_epoch
SELECT extract(epoch from k) as "time", 'n of ' || n as metric, n FROM timestamp_ntz ORDER BY 1

-- name: time_group
SELECT floor(extract(epoch from k)/300)*300 AS "time", sum(n) as value FROM timestamp WHERE k BETWEEN '1969-01-01T00:00:00Z' AND '2026-03-02T00:00:00Z' GROUP BY 1 ORDER BY 1

-- name: time_group_by_name
SELECT floor(extract(epoch from k)/3600)*3600 AS "time", sum(n) as value FROM timestamp_ntz
GROUP BY time
ORDER BY time

-- name: time_group_interval
SELECT floor(extract(epoch from k)/60)*60 AS time, avg(n) as value FROM timestamp_ntz GROUP BY 1 ORDER BY 1

-- name: time_group_below_a_second
SELECT floor(extract(epoch from again)/0.2)*0.2 AS "time", max(n) AS "n" FROM timestamp_ntz GROUP BY 1 ORDER BY 1

-- name: time_group_of_now
WITH data AS (SELECT now()-'3m'::interval AS ts, 42 AS n) SELECT floor(extract(epoch from ts)/60)*60 AS "time", n FROM data

-- name: from_and_to
SELECT k FROM timestamp WHERE k > '2018-03-15T12:55:00Z' OR k < '2018-03-15T12:55:00Z' OR 1 < 1521118500 OR 1521118800 > 1 ORDER BY 1

-- name: unix_epoch_filter
SELECT n as time, k FROM long WHERE n >= 1 AND n <= 1521122100 ORDER BY 2

-- name: unix_epoch_nano_filter
SELECT k FROM long WHERE k >= -1521118500123456789 AND k <= 1521122100123456789 ORDER BY 1

-- name: unix_epoch_group
SELECT floor((k)/300)*300 AS "time", count(*) FROM integer WHERE k >= 0 GROUP BY 1 ORDER BY 1

-- name: annotation
SELECT extract(epoch from k) AS time, n::text as text, 'a,b' as tags FROM timestamp WHERE k BETWEEN '2026-03-01T00:00:00Z' AND '2026-03-02T00:00:00Z'

-- name: variable
SELECT DISTINCT k::text AS __text, n AS __value FROM price ORDER BY 1

-- name: variable_of_several
SELECT count(*) FROM long WHERE k IN ('0','1','-1')
