// sampling: from a row of logits to one token, or to the law it is drawn from.
//
// The law, in float64: w = e^((x - max) / temperature), where x is a logit or what an edit puts in its place; 0 below e^-708. In
// the order of falling w, then of rising id, top_k keeps the first k, and top_p a token while the mass before it is below p *
// (mass that top_k kept). min_p drops w < min_p (the largest w is 1). The token is the first, by rising id, where the sum of
// what was kept is above u * (all of it). Temperature 0: the lowest id among the largest x. A row whose largest x is no finite
// number, or that holds a NaN, gives token -1, and a law of NaN.
//
// sample_reference  as it is written above: the powers of libm, all tokens sorted.
// sample            sorts nothing. What each step brings, in microseconds a row of 49,152 of a real model (one core, AVX-512):
//   all sorted   9,000
//   greedy           7  one pass in vectors; the index only where a block of 64 has a new maximum
//   powers     260, 55  all powers and their sum, with libm's; with a polynomial that the compiler makes vectors of. Without
//                       filters this is all: u is looked for among the sums of blocks, then in one block.
//   filters        260  the border of top_k and of top_p, the last token they keep, by radix selection: 8 bits of w at a time,
//                       which order positive doubles. Linear however flat the law, and exact on ties.
//   few         70-100  the same, among what lies above 2^-4, 2^-6, 2^-9 ..., whichever first holds all that is kept: some
//                       hundred. Blocks whose sum is below are not opened. A law so flat that most tokens are kept takes 450.
// Bytes a row: 4 n read twice; 8 n of w written and read again, in the caches.
//
// Exactness: a row depends on itself alone. Masses are summed in blocks of 64 of the tokens kept, by rising id: element i in
// lane i mod 8, lane j meets j + 4, then j + 2, j + 1; the sums of blocks are one chain. Machines with other lanes do the same.
#pragma once
#include <stdlib.h>

#include "labkernels/ints.hpp"
#include "labkernels/kernel_table.hpp"

namespace labkernels::LAB_ISA {

constexpr int64_t TOKENS = SamplingArgs::TOKENS, SUMS = 8;  // a block of tokens, and the lanes of its sum

struct Token {
    double value;
    int64_t id;
};

// The lowest id among the largest of x and of the row's edits; -1 if those are no finite number, or if one is a NaN.
static inline Token top_of(const SamplingArgs& a, int64_t row, const float* x) {
    Token top{-INFINITY, -1};
    ints bits = splat(0);  // the largest magnitude: above infinity's it is a NaN's
    for (int64_t i = 0; i < a.room(); i += TOKENS) {
        vec most = set1(-INFINITY);
        for (int64_t j = i; j < i + TOKENS; j += LANES) {
            bits = max(bits, magnitude_bits(load(x + j)));
            most = max(most, load(x + j));
        }
        const float peak = largest(most);
        if (!(peak > top.value)) continue;
        for (top = {peak, i}; x[top.id] != peak;) top.id++;
    }
    bool numbers = largest(bits) <= 0x7f800000;
    for (int64_t e = a.edit_start[row]; e < a.edit_start[row + 1]; e++) {
        const Token edit{a.edit_values[e], a.edit_ids[e]};
        numbers = numbers && !isnan(edit.value);
        if (edit.value > top.value || (edit.value == top.value && edit.id < top.id)) top = edit;
    }
    return {top.value, numbers && fabs(top.value) < INFINITY ? top.id : -1};
}

// Tokens by rising id and their masses, in memory for whole blocks. ids: nullptr = all tokens, from 0 on.
struct Kept {
    double* mass;
    int64_t* ids;
    int64_t n;

    int64_t id(int64_t i) const { return ids ? ids[i] : i; }

    // What `stays` of tokens [begin, end) of `from`, which may be this list itself, is added.
    template <class Stays>
    void add(const Kept& from, int64_t begin, int64_t end, const Stays& stays) {
        for (int64_t i = begin; i < end; i++) {  // written in any case: a branch would be guessed wrongly too often
            const double m = from.mass[i];
            ids[n] = from.id(i);
            mass[n] = m;
            n += stays(m);
        }
    }
};

// Writes the sum of each block; returns the sum of all.
static inline double sum_blocks(const Kept& kept, double* sums) {
    double total = 0;
    for (int64_t i = kept.n; i % TOKENS; i++) kept.mass[i] = 0;
    for (int64_t i = 0; i < kept.n; i += TOKENS) {
        double s[SUMS] = {};
        for (int64_t j = i; j < i + TOKENS; j += SUMS)
            for (int lane = 0; lane < SUMS; lane++) s[lane] += kept.mass[j + lane];
        total += sums[i / TOKENS] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
    return total;
}

// The law, or the token that u finds in it.
static inline void finish(const SamplingArgs& a, int64_t row, const Kept& kept, double* sums) {
    const double total = sum_blocks(kept, sums);
    if (a.law) {
        double* law = a.law + row * a.vocab;
        for (int64_t i = 0; i < a.vocab; i++) law[i] = kept.id(0) < 0 ? NAN : 0.0;
        for (int64_t i = 0; i < kept.n && kept.id(0) >= 0; i++) law[kept.id(i)] = kept.mass[i] / total;
        return;
    }
    const double target = fmin(a.u[row] * total, nextafter(total, 0.0));
    double before = 0;
    int64_t i = 0, found = 0;
    for (; before + sums[i / TOKENS] <= target; i += TOKENS) before += sums[i / TOKENS];
    for (int64_t end = i + TOKENS; i < end && before <= target; i++)  // to the block's last where rounding hides the border
        if (kept.mass[i] > 0) before += kept.mass[found = i];
    a.tokens[row] = kept.id(found);
}

// Finishes rows. Where there is a choice, `masses(row, x, top)` gives what is kept. x: the logits to the end of the last block,
// with -inf behind the vocabulary and in the place of what is edited.
template <class Masses>
static inline void each_row(const SamplingArgs& a, int64_t begin, int64_t end, double* sums, float* copy, const Masses& masses) {
    for (int64_t row = begin; row < end; row++) {
        const float* x = a.logits + row * a.vocab;
        const int64_t edit = a.edit_start[row], last_edit = a.edit_start[row + 1];
        if (edit < last_edit || a.vocab < a.room()) {
            memcpy(copy, x, (size_t)a.vocab * 4);
            for (int64_t i = a.vocab; i < a.room(); i++) copy[i] = -INFINITY;
            for (int64_t e = edit; e < last_edit; e++) copy[a.edit_ids[e]] = -INFINITY;
            x = copy;
        }
        Token top = top_of(a, row, x);
        double one[TOKENS] = {1};
        finish(a, row, top.id < 0 || a.temperature[row] == 0 ? Kept{one, &top.id, 1} : masses(row, x, top.value), sums);
    }
}

static int by_mass(const void* left, const void* right) {  // falling, then by rising id
    const Token *a = (const Token*)left, *b = (const Token*)right;
    return a->value != b->value ? (a->value > b->value ? -1 : 1) : (a->id > b->id) - (a->id < b->id);
}

static void sample_reference(const SamplingArgs& a, int64_t begin, int64_t end, float* scratch) {
    const int64_t n = a.vocab, room = a.room();
    double *sums = (double*)scratch, *w = sums + room / TOKENS;
    Token* order = (Token*)(w + room);
    each_row(a, begin, end, sums, (float*)(order + n), [&](int64_t r, const float* x, double top) {
        const auto weight = [&](double z) { return z > -708.0 ? ::exp(z) : 0.0; };
        for (int64_t i = 0; i < n; i++) w[i] = weight((x[i] - top) / a.temperature[r]);
        for (int64_t e = a.edit_start[r]; e < a.edit_start[r + 1]; e++)
            w[a.edit_ids[e]] = weight((a.edit_values[e] - top) / a.temperature[r]);
        for (int64_t i = 0; i < n; i++) order[i] = {w[i], i};
        qsort(order, (size_t)n, sizeof(Token), by_mass);
        const int64_t k = a.top_k[r] ? min_of(a.top_k[r], n) : n;
        double mass = 0, before = 0;
        for (int64_t i = 0; i < k; i++) mass += order[i].value;
        for (int64_t i = 0; i < n; before += order[i++].value)
            if (i >= k || (a.top_p[r] < 1 && !(before < a.top_p[r] * mass)) || order[i].value < a.min_p[r]) w[order[i].id] = 0;
        return Kept{w, nullptr, n};
    });
}

static inline uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

// e^z for z <= 0 by 2^n e^r with |r| <= ln2 / 2, and the series of e^r as far as r^13 / 13!: within 1 ulp where the multiply-adds
// are fused, 2 where not; 1 at 0, 0 below -708.
static inline double power(double z) {
    const double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number, left in the low bits
    const double c = z > -708.0 ? z : -708.0, shifted = fma1(c, 1.44269504088896340736, magic), n = shifted - magic;
    const double r = fma1(n, -1.90821492927058770002e-10, fma1(n, -6.93147180369123816490e-01, c));  // ln2 in two parts
    double p = fma1(fma1(1.0 / 6227020800, r, 1.0 / 479001600), r, 1.0 / 39916800);
    p = fma1(fma1(p, r, 1.0 / 3628800), r, 1.0 / 362880);
    p = fma1(fma1(p, r, 1.0 / 40320), r, 1.0 / 5040);
    p = fma1(fma1(p, r, 1.0 / 720), r, 1.0 / 120);
    p = fma1(fma1(p, r, 1.0 / 24), r, 1.0 / 6);
    p = fma1(fma1(p, r, 0.5) * r, r, r) + 1.0;
    const uint64_t mask = -(uint64_t)(z > -708.0);  // a branch would keep the compiler from vectors
    const uint64_t bits = (bits_of(p) + (bits_of(shifted) << 52)) & mask;
    memcpy(&p, &bits, 8);
    return p;
}

// Keeps tokens, in the order of falling mass, then of rising id, while what lies before is below `limit`: mass, or their number.
// part: scratch for as many masses, those whose digits so far are the border's.
static inline void cut(Kept& kept, bool counted, double limit, double* part) {
    const double* mass = kept.mass;
    int64_t n = kept.n;
    uint64_t border = 0;  // the mass of the last one kept, as far as its bits are known
    double before = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        double bins[4][256] = {};  // four, as an addition waits for the one before in the same place
        for (int64_t i = 0; i < n; i++) bins[i & 3][bits_of(mass[i]) >> shift & 255] += counted ? 1.0 : mass[i];
        double next = before;
        uint64_t found = 0;
        for (int digit = 255; digit >= 0 && next < limit; digit--) {
            const double bin = (bins[0][digit] + bins[1][digit]) + (bins[2][digit] + bins[3][digit]);
            if (bin > 0) found = (uint64_t)digit, before = next, next += bin;
        }
        border = border << 8 | found;
        int64_t same = 0;
        for (int64_t i = 0; i < n; i++) {
            const double m = part[same] = mass[i];
            same += (bits_of(m) >> shift & 255) == found;
        }
        mass = part, n = same;
    }
    const int64_t all = kept.n;
    kept.n = 0;
    kept.add(kept, 0, all, [&](double m) {
        if (bits_of(m) != border) return bits_of(m) > border;
        const bool stays = before < limit;  // of equal ones, the first
        before += counted ? 1.0 : m;
        return stays;
    });
}

static void sample(const SamplingArgs& a, int64_t begin, int64_t end, float* scratch) {
    const int64_t n = a.vocab, room = a.room();
    double *sums = (double*)scratch, *of_all = sums + room / TOKENS, *w = of_all + room / TOKENS;
    int64_t* ids = (int64_t*)(w + 3 * room);
    each_row(a, begin, end, sums, (float*)(ids + room), [&](int64_t r, const float* x, double top) {
        const double scale = fmin(1.0 / a.temperature[r], 1.7e308);  // finite: 0 times it stays 0
        const double k = (double)a.top_k[r], top_p = a.top_p[r], min_p = a.min_p[r];
        for (int64_t i = 0; i < room; i++) w[i] = power((x[i] - top) * scale);
        for (int64_t e = a.edit_start[r]; e < a.edit_start[r + 1]; e++)
            w[a.edit_ids[e]] = power((a.edit_values[e] - top) * scale);
        const Kept all{w, nullptr, n};
        Kept kept{w + room, ids, 0};
        double total = sum_blocks(all, of_all);
        const auto take = [&](double least) {
            kept.n = 0;
            for (int64_t i = 0; i < n; i += TOKENS)
                if (of_all[i / TOKENS] >= least)  // a sum is no less than any of its terms
                    kept.add(all, i, min_of(i + TOKENS, n), [&](double mass) { return mass >= least; });
        };
        const auto keep = [&](bool counted, double limit) {
            double found = kept.n ? limit : 0;
            for (int octaves = 4; found < limit; octaves += octaves / 2) {
                take(ldexp(1.0, -(int)min_of(octaves, 1022)));
                found = octaves >= 1022 ? limit : counted ? (double)kept.n : sum_blocks(kept, sums);
            }
            cut(kept, counted, limit, w + 2 * room);
        };
        if (k > 0 && k < (double)n) {
            keep(true, k);
            total = sum_blocks(kept, sums);
        }
        if (top_p < 1) keep(false, top_p * total);
        if (min_p > 0 && !kept.n) take(min_p);
        const int64_t found = kept.n;
        kept.n = 0;
        kept.add(kept, 0, found, [&](double mass) { return mass >= min_p; });
        return found ? kept : all;
    });
}

}  // namespace labkernels::LAB_ISA
