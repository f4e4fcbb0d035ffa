"""What people write in aggregations: the aggregate functions of Spark's manual, and expressions over their results.

In a template, `{n}` is a column of a kind (KINDS), drawn for each place; `{a}` is any.  If Spark refuses one, another is drawn.
"""

from __future__ import annotations

KINDS: dict[str, str] = {
    "w": "tinyint smallint int bigint",
    "n": "tinyint smallint int bigint float double decimal",
    "f": "float double",
    "c": "decimal",
    "s": "string",
    "b": "boolean",
    "x": "binary",
    "d": "date timestamp timestamp_ntz",
    "t": "timestamp timestamp_ntz",
    "i": "interval",
    "r": "array",
    "m": "map",
    "u": "struct",
    "o": "boolean tinyint smallint int bigint float double decimal string binary date timestamp interval time struct array",
    "a": "",
}
"""letter -> how the names of its types begin"""

STATISTICS = """
stddev({n})
std({n})
stddev_pop({n})
stddev_samp({n})
variance({n})
var_pop({n})
var_samp({n})
skewness({n})
kurtosis({n})
corr({n}, {n})
covar_pop({n}, {n})
covar_samp({n}, {n})
regr_count({n}, {n})
regr_avgx({n}, {n})
regr_avgy({n}, {n})
regr_sxx({n}, {n})
regr_sxy({n}, {n})
regr_syy({n}, {n})
regr_slope({n}, {n})
regr_intercept({n}, {n})
regr_r2({n}, {n})
""".strip().splitlines()
"""of numbers, with a floating-point result but for the count: of few or equal rows NULL, NaN or zero"""

AGGREGATES = [
    *"""
count(*)
count(*)
count({a})
count({a}, {a})
count_if({b})
sum({n})
sum({n})
sum({i})
try_sum({n})
avg({n})
mean({n})
avg({i})
try_avg({n})
min({o})
max({o})
min({d})
max({d})
max({s})
min_by({a}, {o})
max_by({a}, {o})
max_by({a}, {o}, 2)
min_by({a}, {o}, 3)
max_by({s}, {w}, 5)
bool_and({b})
bool_or({b})
every({b})
some({b})
any({b})
bit_and({w})
bit_or({w})
bit_xor({w})
first({a})
first({a}, true)
last({a})
last({a}, true)
any_value({a})
first_value({a})
last_value({a}) IGNORE NULLS
collect_list({a})
collect_set({o})
array_agg({a})
""".strip().splitlines(),
    *STATISTICS,
    *"""
approx_count_distinct({o})
approx_count_distinct({s}, 0.1)
percentile({n}, 0.5)
percentile({n}, array(0.1, 0.9))
percentile({n}, 0.3, abs(cast({w} AS int)))
percentile({i}, 0.5)
percentile_approx({n}, 0.5)
percentile_approx({n}, array(0.25, 0.75), 50)
approx_percentile({d}, 0.4)
percentile_cont(0.25) WITHIN GROUP (ORDER BY {n})
percentile_disc(0.5) WITHIN GROUP (ORDER BY {n} DESC)
median({n})
mode({o})
mode() WITHIN GROUP (ORDER BY {o} DESC)
listagg({s}, ', ')
listagg({s}) WITHIN GROUP (ORDER BY {s} DESC)
string_agg({s}, '|')
histogram_numeric({n}, 3)
count_min_sketch({w}, 0.5d, 0.5d, 1)
bitmap_construct_agg(bitmap_bit_position({w}))
hll_sketch_agg({s})
hll_sketch_estimate(hll_sketch_agg({s}))
theta_sketch_agg({w})
theta_sketch_estimate(theta_sketch_agg({w}))
kll_sketch_get_n_bigint(kll_sketch_agg_bigint({w}))
kll_sketch_agg_bigint({w})
approx_top_k({s})
schema_of_variant_agg(parse_json('1'))
schema_of_variant_agg(try_parse_json({s}))
schema_of_variant_agg(to_variant_object(named_struct('a', {w}, 'b c', {s}, 'd', array({n}))))
first(try_parse_json({s}), true)
collect_list(try_parse_json({s}))
last(make_interval(0, {w} % 5, 0, {w} % 7))
min_by(make_interval(1, {w} % 5), {w})
""".strip().splitlines(),
]

ARGUMENTS = ["{x}", "{x}", "{x}", "{x}", "{x}", "coalesce({x}, {x})", "nullif({x}, {x})", "if({b}, {x}, NULL)"]
"""replacements for a template's column `{x}`"""

ON_VALUES = """
n|{n} + 1
n|{n} * 2
n|{n} - {n}
n|{n} + {n}
n|{n} / {n}
n|try_divide({n}, {n})
n|{n} / (count_me - 1)
n|try_add({n}, 1)
n|-{n}
n|abs({n})
n|sign({n})
n|round({n}, 1)
n|bround({n}, 1)
n|round({n})
n|round({n}, -1)
n|ceil({n})
n|floor({n})
n|CAST({n} AS string)
n|CAST({n} AS double)
n|CAST({n} AS decimal(20,0))
n|CAST({n} AS decimal(10,3))
n|CAST({n} AS bigint)
n|CAST({n} AS int)
n|CAST({n} AS float)
n|CAST({n} AS boolean)
n|CAST({n} AS timestamp)
n|try_cast({n} AS tinyint)
n|{n} > 1
n|{n} BETWEEN -1 AND 10
n|{n} IN (1, 2, 3)
n|greatest({n}, {n})
n|least({n}, 0)
n|coalesce({n}, 0)
n|nullif({n}, 0)
n|if({n} > 0, 'up', 'down')
n|CASE WHEN {n} > 5 THEN 'big' WHEN {n} > 1 THEN 'some' ELSE NULL END
n|{n} IS NULL
n|isnan({n})
n|nvl({n}, {n})
n|{n} <=> {n}
n|format_number({n}, 2)
n|format_number({n}, 0)
n|format_string('%s|%s', {n}, {n})
f|format_string('%.2f %,.1f', {f}, {f})
w|format_string('%05d %,d', {w}, {w})
f|asin({f} / 10)
f|atan2({f}, {f})
f|cbrt({f})
f|tanh({f})
f|log1p(abs({f}))
f|hypot({f}, {f})
w|factorial(CAST({w} AS int))
w|elt(CAST({w} AS int), 'a', 'b')
w|make_timestamp(2024, {w} % 14, 5, {w} % 25, 30, 1.5)
w|{w} % 3
w|pmod({w}, 3)
w|{w} div 2
w|{w} & 7
f|sqrt(abs({f}))
f|exp({f})
f|ln(abs({f}) + 1)
f|pow({f}, 2)
s|upper({s})
s|lower({s})
s|length({s})
s|substring({s}, 1, 2)
s|concat({s}, '-', {s})
s|trim({s})
s|concat_ws('/', {s}, 'x')
s|{s} LIKE 'a%'
s|{s} = 'a'
s|{s} < 'b'
s|{s} IN ('a', 'b')
s|CAST({s} AS int)
s|try_cast({s} AS double)
s|try_cast({s} AS date)
s|CAST({s} AS binary)
s|replace({s}, 'a', 'z')
s|reverse({s})
s|lpad({s}, 5, '*')
s|split({s}, ' ')
s|coalesce({s}, 'none')
s|left({s}, 1)
s|contains({s}, 'a')
s|startswith({s}, 'a')
s|initcap({s})
s|regexp_count({s}, '[ab]')
s|regexp_extract_all({s}, '([a-z])', 1)
s|regexp_instr({s}, 'b')
s|format_string('%10s|%-4s', {s}, {s})
x|length({x})
x|hex({x})
x|CAST({x} AS string)
x|base64({x})
d|CAST({d} AS date)
d|CAST({d} AS string)
d|CAST({d} AS timestamp)
d|CAST({d} AS timestamp_ntz)
d|dayname(CAST({d} AS date))
d|monthname(CAST({d} AS date))
d|year({d})
d|month({d})
d|day({d})
d|dayofweek({d})
d|date_trunc('DAY', {d})
d|date_trunc('HOUR', {d})
d|trunc({d}, 'MM')
d|datediff({d}, {d})
d|date_add({d}, 3)
d|date_sub({d}, 1)
d|add_months({d}, 1)
d|last_day({d})
d|date_format({d}, 'HH:mm')
d|date_format({d}, 'yyyy-MM-dd')
d|to_date({d})
d|unix_date(CAST({d} AS date))
d|{d} > DATE'2024-01-01'
d|{d} - {d}
d|{d} + INTERVAL '1' DAY
d|{d} - INTERVAL '2' MONTH
t|hour({t})
t|minute({t})
t|second({t})
t|unix_micros({t})
t|unix_timestamp({t})
t|CAST({t} AS double)
t|CAST({t} AS bigint)
t|{t} + INTERVAL '90' MINUTE
t|to_utc_timestamp({t}, 'America/New_York')
t|from_utc_timestamp({t}, 'Asia/Tokyo')
i|{i} * 2
i|{i} / 3
i|{i} + {i}
i|-{i}
i|abs({i})
i|CAST({i} AS string)
i|extract(day FROM {i})
i|extract(month FROM {i})
i|CAST({i} AS decimal(20,3))
b|NOT {b}
b|{b} AND {b}
b|{b} OR {b}
b|CAST({b} AS int)
b|CAST({b} AS string)
b|if({b}, 1, 0)
r|size({r})
r|sort_array({r})
r|sort_array({r}, false)
r|array_union({r}, {r})
r|array_except({r}, {r})
r|zip_with({r}, {r}, (v, w) -> coalesce(v, w))
r|array_distinct({r})
r|slice({r}, 1, 2)
r|element_at({r}, 1)
r|try_element_at({r}, 9)
r|{r}[0]
r|array_contains({r}, {r}[0])
r|array_max({r})
r|array_min({r})
r|reverse({r})
r|concat({r}, {r})
r|array_join({r}, ',')
r|cardinality({r})
r|exists({r}, v -> v IS NULL)
r|transform({r}, v -> v)
r|filter({r}, v -> v IS NOT NULL)
m|size({m})
m|map_keys({m})
m|map_values({m})
m|element_at({m}, 'a')
m|map_filter({m}, (k, v) -> v IS NOT NULL)
m|transform_values({m}, (k, v) -> k)
m|transform_keys({m}, (k, v) -> CAST(k AS string))
m|map_zip_with({m}, {m}, (k, v, w) -> v IS NULL)
u|{u}
a|struct({a} AS p, {a} AS q)
a|array({a})
a|named_struct('v', {a})
a|map('k', {a})
a|coalesce({a}, {a})
a|{a} IS NOT NULL
a|isnull({a})
a|hash({a})
a|CAST({a} AS string)
o|{o} = {o}
o|{o} < {o}
o|greatest({o}, {o})
""".strip().splitlines()
"""kind|expression over a column of that kind; `count_me` is a column of count(*)"""

ON_KEYS = """
s|upper({s})
s|substring({s}, 1, 1)
s|length({s})
n|CAST({n} AS bigint)
n|{n} % 2
n|{n} > 0
n|-{n}
d|CAST({d} AS date)
t|date_trunc('HOUR', {t})
d|year({d})
a|named_struct('m', {a})
a|struct({a} AS p, {a} AS q)
a|array({a})
a|if({b}, named_struct('a', {a}), NULL)
a|if({n} > 0, named_struct('a', {d}), NULL)
a|named_struct('deep', if({n} > 0, named_struct('a', {a}), NULL))
a|array(if({n} > 0, named_struct('a', {a}), NULL))
a|{a} IS NULL
s|collate({s}, 'UNICODE_CI')
s|collate({s}, 'UTF8_LCASE')
b|current_date()
a|NULL
a|'constant'
u|{u}.a
d|{d}
a|coalesce({a}, {a})
""".strip().splitlines()

NAMES = [
    "n", "total", "sum", "count", "buf", "max_2", "max", "k", "K", "Total", "my name", "a.b", "it's", 'say "x"', "ü", "名前",
    "avg(x)", "window", "window_start", "window_end", "start", "end", "value", "key", "index", "_batch", "k__isnull", "_limit",
    "x" * 40, "a`b", "first", "session_window", "sum_1", "__dummy__", "isEmpty", "xs", "count_2", "groupingKey",
    "_groupingmapsort", "-", "1", "a,b", "w_start", "w_end", "w", "%", "a/b", "a b c", "\t",
]  # fmt: skip
