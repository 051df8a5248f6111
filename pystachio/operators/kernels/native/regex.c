/* See regex.h. */

#include "regex.h"

#include <string.h>

enum { MOST_FRAMES = 512, MOST_SLOTS = 20, SET_BYTES = 259, OTHERS = 256, IS_ALL_BUT_ONE = 257, THE_ONE = 258 };

/* What a text may cost, and what earlier ones leave to it: beyond, RE2 is quicker. */
enum { STEPS_PER_BYTE = 16, MOST_SAVED_STEPS = 1 << 14 };

/* Where to go on after a failure. `low` >= 0: a run may give back characters down to there; UNDO: slot `at` was
 * `position`. */
typedef struct {
    int32_t at;
    int32_t position;
    int32_t low;
} frame;

enum { PLAIN = -1, UNDO = -2 };

enum outcome { NO_MATCH, MATCHED, TOO_LONG };

/* Bytes of the character that is not ASCII at `text`; 0 when it is none. */
static int32_t character_bytes(const uint8_t *text, int64_t left) {
    uint8_t first = text[0];
    int32_t bytes = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (bytes == 0 || bytes > left) return 0;
    for (int32_t i = 1; i < bytes; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    if ((first == 0xE0 && text[1] < 0xA0) || (first == 0xF0 && text[1] < 0x90) || (first == 0xF4 && text[1] > 0x8F))
        return 0;
    return bytes;
}

static inline int32_t in_set(const uint8_t *set, const uint8_t *text, int32_t position, int32_t length) {
    if (position == length) return 0;
    uint8_t byte = text[position];
    if (byte < 0x80) return set[byte];
    return set[OTHERS] ? character_bytes(text + position, length - position) : 0;
}

static int is_ascii(const uint8_t *text, int32_t bytes) {
    uint64_t all = 0, word;
    for (; bytes >= 8; bytes -= 8, text += 8) {
        memcpy(&word, text, 8);
        all |= word;
    }
    for (; bytes > 0; bytes--) all |= *text++;
    return (all & 0x8080808080808080u) == 0;
}

/* Behind the last of the characters from `position` on that are in the set. */
static int32_t run_end(const uint8_t *set, const uint8_t *text, int32_t position, int32_t length) {
    if (set[IS_ALL_BUT_ONE]) {
        const uint8_t *found = memchr(text + position, set[THE_ONE], (size_t)(length - position));
        int32_t end = found == NULL ? length : (int32_t)(found - text);
        if (is_ascii(text + position, end - position)) return end;
    }
    for (;;) {
        while (position < length && set[text[position]]) position++;
        if (position == length || text[position] < 0x80 || !set[OTHERS]) return position;
        int32_t bytes = character_bytes(text + position, length - position);
        if (bytes == 0) return position;
        position += bytes;
    }
}

static enum outcome match_at(const ps_re_program *program, const uint8_t *text, int32_t length, int32_t start,
                             int64_t *steps, int32_t *spans) {
    frame frames[MOST_FRAMES];
    int32_t depth = 0, at = 0, position = start;
    for (;;) {
        const ps_re_instruction *now = program->instructions + at;
        int failed = 0;
        if (--*steps < 0) return TOO_LONG;
        switch (now->operation) {
        case PS_RE_TEXT:
            failed = length - position < now->b || memcmp(text + position, program->texts + now->a, (size_t)now->b) != 0;
            position += now->b;
            at++;
            break;
        case PS_RE_SET: {
            int32_t bytes = in_set(program->sets + (int64_t)now->a * SET_BYTES, text, position, length);
            failed = bytes == 0;
            position += bytes;
            at++;
            break;
        }
        case PS_RE_RUN:
        case PS_RE_ALL: {
            const uint8_t *set = program->sets + (int64_t)now->a * SET_BYTES;
            int32_t low = position;
            if (now->b) low += in_set(set, text, position, length);
            failed = now->b && low == position;
            int32_t end = failed ? low : run_end(set, text, low, length);
            *steps -= end - position;
            position = end;
            at++;
            if (!failed && now->operation == PS_RE_RUN && end > low) {
                if (depth == MOST_FRAMES) return TOO_LONG;
                frames[depth++] = (frame){at, end, low};
            }
            break;
        }
        case PS_RE_SPLIT:
            if (depth == MOST_FRAMES) return TOO_LONG;
            frames[depth++] = (frame){now->b, position, PLAIN};
            at = now->a;
            break;
        case PS_RE_JUMP:
            at = now->a;
            break;
        case PS_RE_SAVE:
            if (depth == MOST_FRAMES) return TOO_LONG;
            frames[depth++] = (frame){now->a, spans[now->a], UNDO};
            spans[now->a] = position;
            at++;
            break;
        case PS_RE_BEGIN:
            failed = position != 0;
            at++;
            break;
        case PS_RE_END:
            failed = position != length;
            at++;
            break;
        default:
            spans[0] = start;
            spans[1] = position;
            return MATCHED;
        }
        while (failed) {
            if (depth == 0) return NO_MATCH;
            frame *last = frames + depth - 1;
            if (last->low == UNDO) {
                spans[last->at] = last->position;
                depth--;
                continue;
            }
            at = last->at;
            position = last->position;
            if (last->low == PLAIN) {
                depth--;
            } else {
                do position--;
                while (position > last->low && (text[position] & 0xC0) == 0x80);
                last->position = position;
                if (position == last->low) depth--;
            }
            failed = 0;
        }
    }
}

static enum outcome search(const ps_re_program *program, const uint8_t *text, int32_t length, int64_t *steps,
                           int32_t *spans) {
    *steps = (*steps < MOST_SAVED_STEPS ? *steps : MOST_SAVED_STEPS) + ((int64_t)length + 1) * STEPS_PER_BYTE;
    const ps_re_instruction *first = program->instructions;
    for (int32_t start = 0; start <= length; start++) {
        if (first->operation == PS_RE_TEXT) {
            const uint8_t *found = memchr(text + start, program->texts[first->a], (size_t)(length - start));
            if (found == NULL) return NO_MATCH;
            start = (int32_t)(found - text);
        } else if (start > 0 && start < length && (text[start] & 0xC0) == 0x80) {
            continue;
        }
        enum outcome outcome = match_at(program, text, length, start, steps, spans);
        if (outcome != NO_MATCH || first->operation == PS_RE_BEGIN) return outcome;
    }
    return NO_MATCH;
}

int32_t pystachio_regex_spans(const ps_re_program *program, const int64_t *offsets, const uint8_t *data,
                              int64_t data_bytes, int64_t rows, int32_t *spans) {
    int32_t slots = program->slots;
    int64_t steps = MOST_SAVED_STEPS;
    if (slots < 2 || slots > MOST_SLOTS) return PS_NOT_HANDLED;
    for (int64_t row = 0; row < rows; row++, spans += slots) {
        int64_t first = offsets[row], length = offsets[row + 1] - first;
        if (first < 0 || length < 0 || length > data_bytes - first) return PS_CORRUPT;
        if (length > INT32_MAX / 2) return PS_NOT_HANDLED;
        memset(spans, 0xFF, (size_t)slots * sizeof *spans);
        if (search(program, data + first, (int32_t)length, &steps, spans) == TOO_LONG) return PS_NOT_HANDLED;
    }
    return PS_OK;
}

void pystachio_regex_replace(const int64_t *offsets, const uint8_t *data, int64_t rows, const int32_t *spans,
                             int32_t slots, const int32_t *parts, int32_t count, const uint8_t *literals,
                             int64_t *to_offsets, uint8_t *to) {
    int64_t end = 0;
    to_offsets[0] = 0;
    for (int64_t row = 0; row < rows; row++, spans += slots) {
        const uint8_t *text = data + offsets[row], *literal = literals;
        int64_t length = offsets[row + 1] - offsets[row];
        if (spans[1] < 0) {
            if (to != NULL) memcpy(to + end, text, (size_t)length);
            end += length;
        } else {
            if (to != NULL) memcpy(to + end, text, (size_t)spans[0]);
            end += spans[0];
            for (int32_t i = 0; i < count; i++) {
                const uint8_t *from = literal;
                int64_t bytes = -1 - (int64_t)parts[i];
                if (parts[i] >= 0) {
                    int32_t begins = spans[2 * parts[i]], ends = spans[2 * parts[i] + 1];
                    bytes = begins < 0 || ends < begins ? 0 : ends - begins;
                    from = bytes == 0 ? text : text + begins;
                } else {
                    literal += bytes;
                }
                if (to != NULL) memcpy(to + end, from, (size_t)bytes);
                end += bytes;
            }
            if (to != NULL) memcpy(to + end, text + spans[1], (size_t)(length - spans[1]));
            end += length - spans[1];
        }
        to_offsets[row + 1] = end;
    }
}
