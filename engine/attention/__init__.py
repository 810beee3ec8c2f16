"""One attention interface, several implementations, one plain reference.

attend(query, key, value, keys, values, batch, scaling) -> output

query [tokens, heads, head_dim]          the new tokens of all sequences, one after another
key, value [tokens, kv_heads, head_dim]  of the same tokens, already written to the pool
keys, values [slots, kv_heads, head_dim] this layer's pool, seen as one row of slots
batch                                    which rows attend to which slots (engine.batch.Batch)
output [tokens, heads, head_dim]
"""
