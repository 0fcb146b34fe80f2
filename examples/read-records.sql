-- Records in DuckDB: each layer's weight by the widest windows first, straight from the files.
--   duckdb -c ".read examples/read-records.sql"        (reads swap.jsonl in this folder)
SELECT layer, round(avg(memorisation_error), 3) AS error
FROM (
  SELECT unnest(range(start, "end" + 1)) AS layer, width, memorisation_error
  FROM read_json('swap.jsonl', format = 'newline_delimited')
)
GROUP BY layer
ORDER BY layer;
