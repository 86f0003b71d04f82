// paged_attention: softmax(q k^T * scale) v for each token over its sequence's blocks, causal, grouped heads, ragged.
//
// reference        a query and a key at a time over the whole context, scores kept in memory: 4 bytes a key.
// paged_attention  tiles of 64 keys by the online softmax (Milakov & Gimelshein 2018; Dao et al. 2022), for a block of queries
//                  and all query heads of a kv head at once. K of a tile is turned once, so that lanes are keys and a score is
//                  one chain over the dimensions; V is used as it lies, lanes are dimensions and a sum is one chain over keys.
//                  Both are register-blocked products. An int8 pool is expanded a tile at a time.
//
// Exactness: tiles are absolute (keys 0-63, 64-127, ...) and merged in order, in absolute splits of 512 keys, which are merged
// in order too: all this depends on a query's position alone, not on its block of queries, its mates, or the pages. Keys past
// a query's position are skipped, never multiplied by zero: their slots may hold the NaN of an earlier owner.
// Bytes per token and kv head: 8 (p + 1) dim, once for a block of queries. Operations: 4 (p + 1) dim per query head.
#pragma once
#include "labkernels/ints.hpp"
#include "labkernels/kernel_table.hpp"

namespace labkernels::LAB_ISA {

// The state of one query head's softmax: max and sum of e^(s - max), then the values weighted with them.
struct Running {
    float *max, *sum, *values;
};
static inline Running running(float* states, int64_t row, int64_t dim) {
    float* at = states + row * (dim + 2);
    return {at, at + 1, at + 2};
}

// A row of the pool as float32: itself, or expanded into `room`.
static inline const float* row_of(const AttentionArgs& a, const float* in_pool, float* room) {
    if (!a.int8_pool) return in_pool;
    const int8_t* row = (const int8_t*)in_pool;
    float scale;
    memcpy(&scale, row + a.dim, 4);
    for (int64_t i = 0; i < a.dim; i++) room[i] = scale * (float)row[i];
    return room;
}

#if defined(LAB_ISA_AVX512)
constexpr int QUERY_ROWS = 6;  // by 4 vectors: 24 accumulators
#else
constexpr int QUERY_ROWS = 2;
#endif
constexpr int TILE_VECTORS = TILE / LANES;

// Where a tile's rows of K and V lie (float32, or int8 as `row_of` takes it); past the last key, the last.
struct Rows {
    const float *k[TILE], *v[TILE];
    int64_t row_bytes;
};

static inline void find_rows(Rows& rows, const AttentionArgs& a, const AttentionItem& item, int64_t key, int64_t last) {
    rows.row_bytes = a.int8_pool ? a.dim + 4 : a.dim * 4;
    int64_t j = 0, block = key / a.block_size, offset = key % a.block_size;
    while (j < TILE && key + j <= last) {  // a block at a time: its slots are neighbours
        const int64_t first_slot = (item.table[block] * a.kv_heads + item.kv_head) * a.block_size + offset;
        const int64_t end = min_of(min_of(j + a.block_size - offset, TILE), last + 1 - key);
        const char *k = (const char*)a.keys + first_slot * rows.row_bytes, *v = (const char*)a.values + first_slot * rows.row_bytes;
        for (; j < end; j++, k += rows.row_bytes, v += rows.row_bytes) {
            rows.k[j] = (const float*)k;
            rows.v[j] = (const float*)v;
        }
        block++;
        offset = 0;
    }
    for (; j < TILE; j++) {
        rows.k[j] = j ? rows.k[j - 1] : (const float*)a.keys;
        rows.v[j] = j ? rows.v[j - 1] : (const float*)a.values;
    }
}

// Asks for the rows of the next tile, a row or a piece of it at each small step of this one: at the pace at which memory brings
// them. Pages lie anywhere, so the machine cannot foresee them; asked for all at once, they would hold up the work.
struct Fetch {
    const Rows& rows;
    int64_t row = 0, at = 0;

    void piece() {  // two lines
        if (row >= 2 * TILE) return;
        const char* line = (const char*)(row < TILE ? rows.k[row] : rows.v[row - TILE]) + at;
        prefetch_l2(line);
        prefetch_l2(line + 64);
        at += 128;
        if (at >= rows.row_bytes) at = 0, row++;
    }
};

// scratch: dim floats, and one per key of the longest context
static void paged_attention_reference(const AttentionArgs& a, const AttentionItem& item, float* scratch) {
    float *expanded = scratch, *scores = scratch + a.dim;
    Rows rows;
    for (int64_t token = item.token; token < item.token + item.tokens; token++)
        for (int64_t head = item.kv_head * a.group(); head < (item.kv_head + 1) * a.group(); head++) {
            const float* q = a.q + (token * a.heads + head) * a.dim;
            float *out = a.out + (token * a.heads + head) * a.dim, top = -INFINITY, total = 0.0f;
            const int64_t last = a.positions[token];
            for (int64_t key = 0; key <= last; key++) {
                if (key % TILE == 0) find_rows(rows, a, item, key, last);
                const float* k = row_of(a, rows.k[key % TILE], expanded);
                scores[key] = 0.0f;
                for (int64_t i = 0; i < a.dim; i++) scores[key] += q[i] * k[i];
                scores[key] *= a.scale;
                top = scores[key] > top ? scores[key] : top;
            }
            for (int64_t i = 0; i < a.dim; i++) out[i] = 0.0f;
            for (int64_t key = 0; key <= last; key++) {
                if (key % TILE == 0) find_rows(rows, a, item, key, last);
                const float weight = expf(scores[key] - top), *v = row_of(a, rows.v[key % TILE], expanded);
                total += weight;
                for (int64_t i = 0; i < a.dim; i++) out[i] += weight * v[i];
            }
            for (int64_t i = 0; i < a.dim; i++) out[i] /= total;
        }
}

// scores[r][j] = scale * sum over d of q[r][d] * turned[d][j], for V vectors of keys j
template <int R, int V>
static inline void score_rows(float* scores, const float* const* q, const float* turned, int64_t dim, float scale, Fetch& fetch) {
    vec acc[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) acc[r][v] = set1(0.0f);
    for (int64_t d = 0; d < dim; d++) {
        fetch.piece();
        vec k[V];
        for (int v = 0; v < V; v++) k[v] = load(turned + d * TILE + v * LANES);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) acc[r][v] = fma(set1(q[r][d]), k[v], acc[r][v]);
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(scores + r * TILE + v * LANES, acc[r][v] * set1(scale));
}

// Turns a row of scores, of which `count` are seen, into weights; updates max and sum; returns what the old values keep.
static inline float weigh(Running part, float* scores, int64_t count) {
    const int64_t vectors = (count + LANES - 1) / LANES;
    for (int64_t j = count; j < vectors * LANES; j++) scores[j] = -INFINITY;
    vec top = load(scores);
    for (int64_t v = 1; v < vectors; v++) top = max(top, load(scores + v * LANES));
    const float tile_max = largest(top), new_max = tile_max > *part.max ? tile_max : *part.max;
    vec total = set1(0.0f);
    for (int64_t v = 0; v < vectors; v++) {
        const vec weights = exp(load(scores + v * LANES) - set1(new_max));
        store(scores + v * LANES, weights);
        total = total + weights;
    }
    const float keep = exp1(*part.max - new_max);
    *part.sum = *part.sum * keep + sum(total);
    *part.max = new_max;
    return keep;
}

// values[r][i] = values[r][i] * keep[r] + sum over j < counts[r] of weights[r][j] * v[j][i]; counts ascend
template <int R, int V>
static inline void add_values(const Running* parts, const float* keep, const float* weights, const float* const* v, const int64_t* counts,
                              int64_t at, int64_t width, Fetch& fetch) {
    vec acc[R][V];
    const auto load_value = [&](const float* p, int i) { return load_some(p + at + i * LANES, min_of(LANES, width - i * LANES)); };
    for (int r = 0; r < R; r++)
        for (int i = 0; i < V; i++) acc[r][i] = load_value(parts[r].values, i) * set1(keep[r]);
    for (int64_t j = 0; j < counts[0]; j++) {
        fetch.piece();
        vec values[V];
        for (int i = 0; i < V; i++) values[i] = load_value(v[j], i);
        for (int r = 0; r < R; r++)
            for (int i = 0; i < V; i++) acc[r][i] = fma(set1(weights[r * TILE + j]), values[i], acc[r][i]);
    }
    for (int r = 0; r < R; r++)
        for (int64_t j = counts[0]; j < counts[r]; j++)
            for (int i = 0; i < V; i++) acc[r][i] = fma(set1(weights[r * TILE + j]), load_value(v[j], i), acc[r][i]);
    for (int r = 0; r < R; r++)
        for (int i = 0; i < V; i++) store_n(parts[r].values + at + i * LANES, acc[r][i], min_of(LANES, width - i * LANES));
}

template <int R>
static inline void absorb_rows(const AttentionArgs& a, const AttentionItem& item, float* states, int64_t row, const float* turned,
                               const float* const* values, int64_t first_key, int64_t end_key, Fetch& fetch) {
    const float* q[R];
    float scores[R * TILE], keep[R];
    Running parts[R];
    int64_t counts[R];
    for (int r = 0; r < R; r++) {
        const int64_t token = item.token + (row + r) / a.group(), head = item.kv_head * a.group() + (row + r) % a.group();
        q[r] = a.q + (token * a.heads + head) * a.dim;
        parts[r] = running(states, row + r, a.dim);
        counts[r] = min_of(end_key, a.positions[token] + 1) - first_key;
    }
    with_count<TILE_VECTORS>(0, (counts[R - 1] + LANES - 1) / LANES, [&](int64_t, auto vectors) {
        score_rows<R, decltype(vectors)::value>(scores, q, turned, a.dim, a.scale, fetch);
    });
    for (int r = 0; r < R; r++) keep[r] = weigh(parts[r], scores + r * TILE, counts[r]);
    int64_t i = 0;
    for (; i + 4 * LANES <= a.dim; i += 4 * LANES) add_values<R, 4>(parts, keep, scores, values, counts, i, 4 * LANES, fetch);
    for (; i < a.dim; i += LANES) add_values<R, 1>(parts, keep, scores, values, counts, i, min_of(LANES, a.dim - i), fetch);
}

// The item's queries over the keys of one split, into fresh states (tokens x group rows). scratch: args.scratch_floats().
static void attend_split(const AttentionArgs& a, const AttentionItem& item, int64_t split, float* states, float* scratch) {
    const int64_t group = a.group(), rows = item.tokens * group, last = a.positions[item.token + item.tokens - 1];
    for (int64_t row = 0; row < rows; row++) {
        const Running fresh = running(states, row, a.dim);
        *fresh.max = -INFINITY;
        *fresh.sum = 0.0f;
        for (int64_t i = 0; i < a.dim; i++) fresh.values[i] = 0.0f;
    }
    float *turned = scratch, *gathered = turned + a.dim * TILE, *expanded = gathered + a.dim * LANES;  // turned: (dim, TILE)
    const bool side_by_side = a.int8_pool || a.block_size % LANES == 0;  // whether 16 keys always lie in one piece
    Rows tiles[2];
    int64_t first_row = 0, turn = 0;
    find_rows(tiles[0], a, item, split * SPLIT, last);
    for (int64_t key = split * SPLIT; key < min_of((split + 1) * SPLIT, last + 1); key += TILE) {
        const int64_t count = min_of(TILE, last + 1 - key);
        Rows &here = tiles[turn], &ahead = tiles[turn ^= 1];
        find_rows(ahead, a, item, key + TILE, last);
        Fetch fetch{ahead};
        if (a.int8_pool)
            for (int64_t j = 0; j < count; j++) {
                here.k[j] = row_of(a, here.k[j], expanded + j * a.dim);
                here.v[j] = row_of(a, here.v[j], expanded + (TILE + j) * a.dim);
            }
        for (int64_t j = 0; j < count; j += LANES) {  // past `count` stand old numbers: their scores are masked
            const float* keys = here.k[j];
            if (!side_by_side) {
                for (int64_t i = 0; i < min_of(LANES, count - j); i++) memcpy(gathered + i * a.dim, here.k[j + i], (size_t)a.dim * 4);
                keys = gathered;
            }
            transpose16(turned + j, TILE, keys, a.dim, a.dim, [&] {
                fetch.piece();
                fetch.piece();
            });
        }
        while (a.positions[item.token + first_row / group] < key) first_row += group;  // these queries see nothing of the tile
        in_row_blocks<QUERY_ROWS>(first_row, rows, [&](int64_t row, auto count_of) {
            absorb_rows<decltype(count_of)::value>(a, item, states, row, turned, here.v, key, key + count, fetch);
        });
    }
}

// total = total and then part, of one item
static void merge_states(const AttentionArgs& a, float* total_states, float* part_states, int64_t rows) {
    for (int64_t row = 0; row < rows; row++) {
        const Running total = running(total_states, row, a.dim), part = running(part_states, row, a.dim);
        if (*part.sum == 0.0f && *part.max == -INFINITY) continue;  // this query sees nothing of the split
        const float new_max = *part.max > *total.max ? *part.max : *total.max;
        const float keep = exp1(*total.max - new_max), take = exp1(*part.max - new_max);
        *total.sum = *total.sum * keep + *part.sum * take;
        *total.max = new_max;
        for (int64_t i = 0; i < a.dim; i++) total.values[i] = total.values[i] * keep + part.values[i] * take;
    }
}

static void write_attention(const AttentionArgs& a, const AttentionItem& item, float* states) {
    for (int64_t row = 0; row < item.tokens * a.group(); row++) {
        const int64_t token = item.token + row / a.group(), head = item.kv_head * a.group() + row % a.group();
        const Running done = running(states, row, a.dim);
        for (int64_t i = 0; i < a.dim; i++) a.out[(token * a.heads + head) * a.dim + i] = done.values[i] / *done.sum;
    }
}

}  // namespace labkernels::LAB_ISA
