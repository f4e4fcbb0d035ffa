"""Aggregate functions whose buffers can be merged: of salts, and of buckets.

Their columns: page, n, x, price, big, word, at.
"""

AGGREGATES = [
    "count(*)", "count(n)", "sum(n)", "sum(x)", "avg(n)", "avg(x)", "min(n)", "max(n)", "min(x)", "max(x)", "min(word)",
    "max(word)", "sum(price)", "avg(price)", "min(price)", "max(price)", "min(page)", "max(at)", "max(struct(n, word))",
    "try_sum(n)", "bit_and(n)", "bit_or(n)", "bit_xor(n)", "max_by(n, at)", "min_by(n, at)", "sum(n) filter (where n > 0)",
    "max_by(n, at, 3)", "min_by(word, at, 40)",
    "try_sum(big)", "approx_count_distinct(n)", "approx_count_distinct(word, 0.2)", "stddev(x)", "stddev_pop(n)", "var_samp(x)",
    "var_pop(n)", "skewness(n)", "kurtosis(n)", "covar_pop(n, x)", "covar_samp(n, x)", "corr(n, x)",
    "collect_list(n)", "collect_set(word)", "collect_set(n)", "size(collect_set(word))",
    "percentile(n, array(0.1, 0.5))", "median(x)", "percentile_disc(0.4) WITHIN GROUP (ORDER BY n DESC)",
    "percentile_approx(n, 0.5)", "mode(word, true)", "listagg(word, ',') WITHIN GROUP (ORDER BY word)",
    "listagg(word, ',') WITHIN GROUP (ORDER BY length(word), word DESC)", "regr_slope(n, x)", "regr_intercept(n, x)",
    "hll_sketch_estimate(hll_sketch_agg(n))", "theta_sketch_estimate(theta_sketch_agg(word))", "approx_top_k(word, 1000)",
    "if(kll_sketch_get_n_bigint(kll_sketch_agg_bigint(n)) > 0,"
    " kll_sketch_get_quantile_bigint(kll_sketch_agg_bigint(n), array(0.0, 1.0)), NULL)",
    "regr_r2(n, x)", "regr_sxx(n, x)", "regr_syy(n, x)", "regr_sxy(n, x)", "regr_count(n, x)", "regr_avgx(n, x)",
]  # fmt: skip
