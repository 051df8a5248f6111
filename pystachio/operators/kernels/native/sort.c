/* Radix sort from the highest bits on, out of place and therefore stable; see kernels/radix_sort.py. */
#include "sort.h"

#include "internal.h"

enum { FEW_ROWS = 24, MOST_BITS = 8, SPLIT_BITS = 10, CROWD_BITS = 6, MOST_CROWDS = 32 };
_Static_assert((1 << SPLIT_BITS) + (MOST_CROWDS << CROWD_BITS) == PS_SORT_PARTS, "parts, some of them split again");

typedef struct {
    const int64_t *const *words;
    int64_t count;
} ps_keys;

/* Words that compare without their sign. */
PS_INLINE uint64_t as_unsigned(int64_t word) { return (uint64_t)word ^ (uint64_t)1 << 63; }

PS_INLINE int64_t as_signed(uint64_t word) { return (int64_t)(word ^ (uint64_t)1 << 63); }

PS_INLINE int shift_for(uint64_t low, uint64_t high, int bits) {
    int highest = 63 - __builtin_clzll(low ^ high);
    return highest >= bits ? highest + 1 - bits : 0;
}

PS_INLINE bool precedes(ps_sorted_row left, ps_sorted_row right, ps_keys keys, int64_t key) {
    if (left.word != right.word) return left.word < right.word;
    while (++key < keys.count) {
        int64_t a = keys.words[key][left.row], b = keys.words[key][right.row];
        if (a != b) return a < b;
    }
    return false;
}

static void insert_few(ps_sorted_row *part, int64_t rows, ps_keys keys, int64_t key) {
    for (int64_t i = 1; i < rows; i++) {
        ps_sorted_row row = part[i];
        int64_t place = i;
        for (; place > 0 && precedes(row, part[place - 1], keys, key); place--) part[place] = part[place - 1];
        part[place] = row;
    }
}

static void put_out(const ps_sorted_row *part, int64_t rows, int64_t wanted, int64_t *order) {
    for (int64_t i = 0; i < (rows < wanted ? rows : wanted); i++) order[i] = part[i].row;
}

/* `key` is the word that the part's rows hold. */
static void sort_by(ps_keys keys, int64_t key, ps_sorted_row *part, ps_sorted_row *other, int64_t rows, int64_t wanted,
                    int64_t *order) {
    for (;;) {
        if (rows <= FEW_ROWS) {
            insert_few(part, rows, keys, key);
            put_out(part, rows, wanted, order);
            return;
        }
        uint64_t low = part[0].word, high = low;
        bool falls = false, is_equal = false;
        for (int64_t i = 1; i < rows; i++) {
            uint64_t word = part[i].word;
            low = word < low ? word : low;
            high = word > high ? word : high;
            falls |= word < part[i - 1].word;
            is_equal |= word == part[i - 1].word;
        }
        bool is_last = key + 1 == keys.count;
        if (!falls && (is_last || !is_equal)) {
            put_out(part, rows, wanted, order);
            return;
        }
        if (low == high) {
            const int64_t *words = keys.words[++key];
            for (int64_t i = 0; i < rows; i++) part[i].word = as_unsigned(words[part[i].row]);
            continue;
        }
        int bits = rows >= 4096 ? MOST_BITS : rows >= 256 ? 6 : 4;
        int shift = shift_for(low, high, bits);
        uint64_t first = low >> shift;
        int64_t parts = (int64_t)((high >> shift) - first) + 1;
        int64_t places[1 << MOST_BITS] = {0}, before = 0;
        for (int64_t i = 0; i < rows; i++) places[(part[i].word >> shift) - first]++;
        for (int64_t p = 0; p < parts; p++) {
            int64_t length = places[p];
            places[p] = before;
            before += length;
        }
        for (int64_t i = 0; i < rows; i++) other[places[(part[i].word >> shift) - first]++] = part[i];
        /* Each place is now where the next part begins. */
        for (int64_t p = 0, start = 0; p < parts && start < wanted; start = places[p++]) {
            int64_t length = places[p] - start;
            if (length) sort_by(keys, key, other + start, part + start, length, wanted - start, order + start);
        }
        return;
    }
}

void pystachio_sort_part(const int64_t *const *words, int64_t count, ps_sorted_row *part, ps_sorted_row *other,
                         int64_t rows, int64_t wanted, int64_t *order) {
    sort_by((ps_keys){words, count}, 0, part, other, rows, wanted, order);
}

/* A part that too many rows are in, as one value far from all others makes it: it is split again. */
typedef struct {
    uint64_t low, high, first;
    int shift;
    int64_t places[1 << CROWD_BITS];
} ps_crowd;

typedef struct {
    uint64_t first;
    int shift;
    /* 1 + the number of its crowd, for each part; 0 for none. */
    uint8_t crowd_of[1 << SPLIT_BITS];
    ps_crowd crowds[MOST_CROWDS];
} ps_split;

PS_INLINE int64_t part_of(const ps_split *split, uint64_t word) { return (int64_t)((word >> split->shift) - split->first); }

/* NULL for a word in no crowd. */
PS_INLINE ps_crowd *crowd_at(ps_split *split, uint64_t word) {
    int number = split->crowd_of[part_of(split, word)];
    return number ? &split->crowds[number - 1] : NULL;
}

PS_INLINE int64_t *place_among(ps_crowd *crowd, uint64_t word) {
    return &crowd->places[(word >> crowd->shift) - crowd->first];
}

/* The least and the greatest of the `words` from `least` to `greatest`: there are some. */
PS_CLONES static void range_within(const int64_t *restrict words, int64_t rows, int64_t least, int64_t greatest,
                                   int64_t *restrict low, int64_t *restrict high) {
    int64_t lowest = greatest, highest = least;
    for (int64_t i = 0; i < rows; i++) {
        bool is_within = words[i] >= least && words[i] <= greatest;
        int64_t below = is_within ? words[i] : greatest, above = is_within ? words[i] : least;
        lowest = below < lowest ? below : lowest;
        highest = above > highest ? above : highest;
    }
    *low = lowest;
    *high = highest;
}

static void begin_crowd(ps_crowd *crowd, const ps_split *split, int64_t part, const int64_t *words, int64_t rows) {
    uint64_t least = ((uint64_t)part + split->first) << split->shift;
    int64_t low, high;
    range_within(words, rows, as_signed(least), as_signed(least | (((uint64_t)1 << split->shift) - 1)), &low, &high);
    *crowd = (ps_crowd){.low = as_unsigned(low), .high = as_unsigned(high)};
    crowd->shift = low == high ? 0 : shift_for(crowd->low, crowd->high, CROWD_BITS);
    crowd->first = crowd->low >> crowd->shift;
}

static void count_crowds(ps_split *split, const int64_t *words, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        uint64_t word = as_unsigned(words[i]);
        ps_crowd *crowd = crowd_at(split, word);
        if (crowd) ++*place_among(crowd, word);
    }
}

/* The next part is `*length` rows long, which becomes where it begins. */
PS_INLINE void begin_part(int64_t *length, int64_t *edges, int64_t *parts) {
    int64_t rows = *length;
    *length = edges[*parts];
    edges[*parts + 1] = *length + rows;
    ++*parts;
}

PS_CLONES int64_t pystachio_sort_split(const int64_t *words, int64_t rows, int64_t longest, ps_sorted_row *to,
                                       int64_t *edges) {
    int64_t lowest = rows ? words[0] : 0, highest = lowest;
    for (int64_t i = 1; i < rows; i++) {
        lowest = words[i] < lowest ? words[i] : lowest;
        highest = words[i] > highest ? words[i] : highest;
    }
    uint64_t low = as_unsigned(lowest), high = as_unsigned(highest);
    edges[0] = 0;
    if (low == high) {
        for (int64_t i = 0; i < rows; i++) to[i] = (ps_sorted_row){low, i};
        edges[1] = rows;
        return 1;
    }
    ps_split split = {.shift = shift_for(low, high, SPLIT_BITS)};
    split.first = low >> split.shift;
    int64_t places[1 << SPLIT_BITS] = {0}, parts = 0;
    for (int64_t i = 0; i < rows; i++) places[part_of(&split, as_unsigned(words[i]))]++;
    int crowds = 0;
    for (int64_t p = 0; p <= part_of(&split, high); p++) {
        if (places[p] <= longest || places[p] <= rows / MOST_CROWDS) continue;
        begin_crowd(&split.crowds[crowds], &split, p, words, rows);
        split.crowd_of[p] = (uint8_t)++crowds;
    }
    if (crowds) count_crowds(&split, words, rows);
    for (int64_t p = 0; p <= part_of(&split, high); p++) {
        if (!split.crowd_of[p]) {
            begin_part(&places[p], edges, &parts);
            continue;
        }
        ps_crowd *crowd = &split.crowds[split.crowd_of[p] - 1];
        for (uint64_t s = 0; s <= (crowd->high >> crowd->shift) - crowd->first; s++) {
            begin_part(&crowd->places[s], edges, &parts);
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        uint64_t word = as_unsigned(words[i]);
        ps_crowd *crowd = crowds ? crowd_at(&split, word) : NULL;
        int64_t *place = crowd ? place_among(crowd, word) : &places[part_of(&split, word)];
        to[(*place)++] = (ps_sorted_row){word, i};
    }
    return parts;
}

#define DEFINE_ORDER_FLOATS(NAME, FLOAT)                                                                               \
    PS_CLONES static void NAME(const FLOAT *restrict values, int64_t rows, int64_t *restrict words) {                  \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            double value = (double)values[i] + 0.0;                                                                    \
            int64_t bits;                                                                                              \
            memcpy(&bits, &value, sizeof bits);                                                                        \
            bits = value != value ? 0x7FF8000000000000 : bits;                                                         \
            words[i] = bits ^ ((bits >> 63) & INT64_MAX);                                                              \
        }                                                                                                              \
    }

DEFINE_ORDER_FLOATS(order_floats_4, float)
DEFINE_ORDER_FLOATS(order_floats_8, double)

int32_t pystachio_order_floats(const void *values, int32_t width, int64_t rows, int64_t *words) {
    if (width == 4) {
        order_floats_4(values, rows, words);
    } else if (width == 8) {
        order_floats_8(values, rows, words);
    } else {
        return PS_NOT_HANDLED;
    }
    return PS_OK;
}
