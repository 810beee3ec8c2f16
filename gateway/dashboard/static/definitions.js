/**
 * What each number means: in words, as a formula, and the metric that carries it.
 */

export const DEFINITIONS = {
  byTokens: { text: "How much of all prompts was read from the cache instead of computed.", formula: "read tokens ÷ prompt tokens", metric: "keepwarm_input_tokens_total" },
  byRequests: { text: "How many requests read at least the policy's minimum. Pre-warms do not count.", formula: "requests that hit ÷ requests", metric: "keepwarm_cache_hits_total ÷ keepwarm_cache_lookups_total" },
  read: { text: "Prompt tokens whose keys and values were reused, so not computed.", formula: "Σ read", metric: 'keepwarm_input_tokens_total{cache="read"}' },
  write: { text: "Prompt tokens computed now and kept because the request asked for it, by class: how long.", formula: "Σ write", metric: 'keepwarm_input_tokens_total{cache="write"}' },
  uncached: { text: "Prompt tokens computed now that nobody asked to keep. They may still be held and read later.", formula: "prompt − read − write", metric: 'keepwarm_input_tokens_total{cache="uncached"}' },
  unknown: { text: "Prompt tokens of answers that ended before their accounts were complete. Unknown is not zero.", formula: "prompt − read − write − uncached", metric: 'keepwarm_input_tokens_total{cache="unknown"}' },
  prompt: { text: "All tokens that requests sent, read or not.", formula: "read + write + uncached + unknown", metric: "keepwarm_input_tokens_total" },
  output: { text: "Tokens that were generated.", formula: "Σ output", metric: "keepwarm_output_tokens_total" },
  projections: { text: "Positions that the model did not have to pass through its layers, against a server that keeps nothing between requests.", formula: "1 − done ÷ without prefix cache", metric: "keepwarm_engine_tokens_projected" },
  firstToken: { text: "From a request's arrival to its first token, for requests that hit and that missed. Half are faster than p50, 1 in 20 is slower than p95, 1 in 100 slower than p99.", formula: "quantiles of each minute's times", metric: "keepwarm_time_to_first_token_seconds" },
  seconds: { text: "From a request's arrival to its last token.", formula: "p50, p95, p99", metric: "keepwarm_request_duration_seconds" },
  throughput: { text: "Tokens that went in and that came out, each second.", formula: "Σ tokens ÷ seconds of the bucket", metric: "rate of keepwarm_input_tokens_total, keepwarm_output_tokens_total" },
  requests: { text: "Requests whose prompt was made, without pre-warms.", formula: "finished + failed + cancelled", metric: "keepwarm_requests_total" },
  capacity: { text: "Tokens in the cache by class. Promised: a request asked for it, and the deadline is kept unless memory is pressed beyond the budget. Held: kept while there is room.", formula: "entries' tokens; capacity = blocks × tokens per block", metric: "keepwarm_cache_tokens_held" },
  health: { text: "This gateway and its engine, now.", formula: "every 2 seconds", metric: "/admin/v1/live" },
  amortisation: { text: "How often each token that was written on request has been read since the range began. Above the break-even, writing costs less than it saves.", formula: "Σ read ÷ Σ write; break-even = what a write costs more ÷ what a read saves", metric: 'keepwarm_input_tokens_total{cache="read"} ÷ {cache="write"}' },
  net: { text: "What reads saved, less what writes cost more than computing without keeping, at the rates set for each model.", formula: "saved by reads − paid for writes", metric: "keepwarm_cache_cost_saved_total − keepwarm_cache_write_cost_total" },
};
