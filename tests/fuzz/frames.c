/* SPDX-License-Identifier: Apache-2.0
 *
 * See frames.h.
 */
#include "tests/fuzz/frames.h"

#include "base/assert.h"

enum type {
    DATA,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    PUSH_PROMISE,
    PING,
    GOAWAY,
    WINDOW_UPDATE,
    CONTINUATION
};
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4, PADDED = 8, WITH_PRIORITY = 32, HEAD_BYTES = 9 };
enum { LARGE_BYTES = 64, LARGE_BYTES_MAX = 255 * LARGE_BYTES };

static void put(struct frames *frames, const void *data, size_t size)
{
    /* If the buffer is full, the frame is truncated. */
    hps_ignore(size > 0 ? hps_buf_append(&frames->out, data, size) : HPS_OK);
}

static void put_u8(struct frames *frames, unsigned value)
{
    uint8_t byte = (uint8_t)value;

    put(frames, &byte, 1);
}

static void put_u32(struct frames *frames, uint32_t value)
{
    const uint8_t bytes[4] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8),
                              (uint8_t)value};

    put(frames, bytes, sizeof(bytes));
}

static void put_head(struct frames *frames, size_t size, unsigned type, unsigned flags, uint32_t id)
{
    const uint8_t head[HEAD_BYTES] = {
        (uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size,
        (uint8_t)type,         (uint8_t)flags,       (uint8_t)(id >> 24),
        (uint8_t)(id >> 16),   (uint8_t)(id >> 8),   (uint8_t)id};

    put(frames, head, sizeof(head));
}

void frames_init(struct frames *frames, bool server, const char *const *paths, unsigned n_paths)
{
    *frames = (struct frames){.server = server, .next_id = 1, .paths = paths, .n_paths = n_paths};
    hps_buf_init(&frames->out, FRAMES_BYTES_MAX);
}

void frames_fini(struct frames *frames)
{
    hps_buf_fini(&frames->out);
}

void frames_begin(struct frames *frames)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    if (!frames->server) {
        put(frames, preface, sizeof(preface) - 1);
    }
    put_head(frames, 0, SETTINGS, 0, 0);
}

/* Usually the ID of an open stream. */
static uint32_t some_id(const struct frames *frames, struct script *script)
{
    uint8_t choice = script_u8(script);

    switch (choice >> 5) {
    case 7:
        return choice == 255 ? script_u32(script) & 0x7fffffff : choice & 3;
    case 6:
        return frames->next_id;
    default: {
        uint32_t back = 2u * (choice & 7) + 2;
        return frames->next_id > back ? frames->next_id - back : 1;
    }
    }
}

/* ---- header blocks --------------------------------------------------------------------------- */

/* A literal that is not stored in the table, without Huffman coding. */
static void put_field(struct frames *frames, const char *name, const char *value)
{
    const char *const texts[2] = {name, value};
    uint8_t field[1 + 2 * (3 + 255)] = {0x10};
    size_t n = 1;

    for (unsigned i = 0; i < 2; i++) {
        size_t size = strlen(texts[i]);
        HPS_ASSERT(size <= 255);
        if (size < 127) {
            field[n++] = (uint8_t)size;
        } else {
            field[n++] = 127;
            field[n++] = (uint8_t)((size - 127) | 128);
            field[n++] = (uint8_t)((size - 127) >> 7);
        }
        memcpy(field + n, texts[i], size);
        n += size;
    }
    put(frames, field, n);
}

static void put_some_field(struct frames *frames, struct script *script, const char *const *usual,
                           unsigned n_usual)
{
    char name[256];
    char value[256];
    unsigned i = script_u8(script) % (n_usual + 2);

    if (i < n_usual) {
        put_field(frames, usual[2 * i], usual[2 * i + 1]);
    } else if (i == n_usual) {
        put_field(frames, usual[2 * (script_u8(script) % n_usual)], script_text(script, value));
    } else {
        script_text(script, name);
        put_field(frames, name, script_text(script, value));
    }
}

static void put_request(struct frames *frames, struct script *script)
{
    static const char *const usual[] = {
        "grpc-timeout",
        "10m",
        "grpc-timeout",
        "99999999H",
        "grpc-timeout",
        "0n",
        "grpc-encoding",
        "gzip",
        "grpc-encoding",
        "br",
        "grpc-accept-encoding",
        "gzip, identity",
        "te",
        "trailers",
        "authorization",
        "Bearer secret",
        "authorization",
        "Bearer other",
        "x-raw-bin",
        "AAECAw",
        "x-raw-bin",
        "!",
        "content-length",
        "7",
        "content-type",
        "application/grpc+proto",
        "content-type",
        "text/html",
        ":path",
        "/again",
        "connection",
        "close",
    };
    uint8_t choice = script_u8(script);

    put_field(frames, ":method", choice == 255 ? "GET" : "POST");
    put_field(frames, ":scheme", "http");
    put_field(frames, ":authority", "fuzz");
    put_field(frames, ":path", frames->paths[choice % frames->n_paths]);
    put_field(frames, "content-type", "application/grpc");
    for (unsigned n = script_u8(script) % 4; n > 0; n--) {
        put_some_field(frames, script, usual, sizeof(usual) / sizeof(usual[0]) / 2);
    }
}

static void put_response(struct frames *frames, struct script *script)
{
    static const char *const usual[] = {
        "content-type",   "application/grpc",
        "content-type",   "text/html",
        "grpc-status",    "0",
        "grpc-status",    "14",
        "grpc-status",    "99",
        "grpc-status",    "-1",
        "grpc-status",    "x",
        "grpc-message",   "it%20is%",
        "grpc-message",   "%zz%0a",
        "grpc-encoding",  "gzip",
        "content-length", "5",
        "x-raw-bin",      "AA=",
        "location",       "elsewhere",
        ":status",        "200",
    };
    static const char *const statuses[] = {"200", "200", "200", "200", "100", "404", "503", "abc"};

    if ((script_u8(script) & 1) == 0) { /* else the block is trailers */
        put_field(frames, ":status", statuses[script_u8(script) % 8]);
    }
    for (unsigned n = script_u8(script) % 4; n > 0; n--) {
        put_some_field(frames, script, usual, sizeof(usual) / sizeof(usual[0]) / 2);
    }
}

/* Writes the size into the head of the frame that begins at `begin`. */
static void end_frame(struct frames *frames, size_t begin)
{
    if (frames->out.size - begin > HEAD_BYTES) {
        size_t size = frames->out.size - begin - HEAD_BYTES;
        frames->out.data[begin] = (uint8_t)(size >> 16);
        frames->out.data[begin + 1] = (uint8_t)(size >> 8);
        frames->out.data[begin + 2] = (uint8_t)size;
    }
}

static void put_headers(struct frames *frames, struct script *script, bool raw)
{
    uint8_t flags = script_u8(script);
    size_t begin = frames->out.size;
    uint32_t id = frames->server || (flags & 0x80) != 0 ? some_id(frames, script) : frames->next_id;

    /* Usually complete, because after an incomplete block only CONTINUATION is allowed. */
    bool whole = (flags & 0x70) != 0x70;
    put_head(frames, 0, HEADERS, (flags & (END_STREAM | PADDED)) | (whole ? END_HEADERS : 0), id);
    if ((flags & PADDED) != 0) {
        put_u8(frames, 0);
    }
    if (raw) {
        size_t size;
        const uint8_t *data = script_run(script, &size);
        put(frames, data, size);
    } else if (frames->server) {
        put_response(frames, script);
    } else {
        put_request(frames, script);
    }
    end_frame(frames, begin);
    frames->next_id += !frames->server && id == frames->next_id ? 2 : 0;
}

/* ---- other frames ---------------------------------------------------------------------------- */

/* Bytes 0, 1, 2 and so on. */
static void put_counted(struct frames *frames, size_t size)
{
    static uint8_t bytes[LARGE_BYTES_MAX];

    HPS_ASSERT(size <= sizeof(bytes));
    for (size_t i = 0; bytes[1] == 0 && i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)i;
    }
    put(frames, bytes, size);
}

/* A gRPC message, a part of one, or other bytes. */
static void put_data(struct frames *frames, struct script *script)
{
    uint8_t flags = script_u8(script);
    uint32_t id = some_id(frames, script);
    size_t begin = frames->out.size;
    size_t size;

    put_head(frames, 0, DATA, flags & END_STREAM, id);
    uint8_t lie = script_u8(script);
    size_t large = (flags & 0x40) != 0 ? (size_t)script_u8(script) * LARGE_BYTES : 0;
    const uint8_t *data = script_run(script, &size);
    if ((flags & 2) == 0) {
        put_u8(frames, (flags & 4) != 0);
        put_u32(frames, lie >= 0xf0 ? script_u32(script) : (uint32_t)(size + large));
    }
    put(frames, data, size);
    put_counted(frames, large);
    end_frame(frames, begin);
}

static void put_settings(struct frames *frames, struct script *script)
{
    static const uint16_t ids[] = {1, 2, 3, 4, 5, 6, 4, 99};
    uint8_t choice = script_u8(script);
    unsigned n = choice % 4;

    put_head(frames, (size_t)n * 6, SETTINGS, choice == 255 ? ACK : 0, 0);
    for (; n > 0; n--) {
        uint8_t id = script_u8(script);
        uint32_t value = script_u32(script);
        put_u8(frames, 0);
        put_u8(frames, ids[id % 8]);
        put_u32(frames, (id & 8) != 0 ? value : value & 0xffff);
    }
}

static void put_small(struct frames *frames, unsigned type, struct script *script)
{
    uint8_t choice = script_u8(script);
    uint32_t id = some_id(frames, script);
    uint32_t value = script_u32(script);

    switch (type) {
    case RST_STREAM:
        put_head(frames, 4, RST_STREAM, 0, id);
        put_u32(frames, choice & 15);
        break;
    case PING:
        put_head(frames, 8, PING, choice == 255 ? ACK : 0, 0);
        put_u32(frames, value);
        put_u32(frames, 0);
        break;
    case GOAWAY:
        put_head(frames, 8, GOAWAY, 0, 0);
        put_u32(frames, (choice & 1) != 0 ? value & 0x7fffffff : id);
        put_u32(frames, choice & 15);
        break;
    case WINDOW_UPDATE:
        put_head(frames, 4, WINDOW_UPDATE, 0, (choice & 1) != 0 ? id : 0);
        put_u32(frames, (choice & 2) != 0 ? value : value & 0xffff);
        break;
    default:
        put_head(frames, 5, PRIORITY, 0, id);
        put_u32(frames, value);
        put_u8(frames, choice);
        break;
    }
}

/* A frame of any type, with any declared size. */
static void put_strange(struct frames *frames, struct script *script)
{
    size_t size;
    uint8_t type = script_u8(script);
    uint8_t flags = script_u8(script);
    uint8_t lie = script_u8(script);
    uint32_t id = some_id(frames, script);
    const uint8_t *data = script_run(script, &size);

    put_head(frames, lie < 0xc0 ? size : lie, type % 12, flags, id);
    put(frames, data, size);
}

static void put_continuation(struct frames *frames, struct script *script)
{
    size_t size;
    uint8_t flags = script_u8(script);
    const uint8_t *data = script_run(script, &size);

    put_head(frames, size, CONTINUATION, flags & END_HEADERS,
             frames->next_id > 2 ? frames->next_id - 2 : 1);
    put(frames, data, size);
}

void frames_put(struct frames *frames, unsigned kind, struct script *script)
{
    static const uint8_t small[] = {RST_STREAM, PING, GOAWAY, WINDOW_UPDATE, PRIORITY};

    HPS_ASSERT(kind < FRAMES_KINDS);
    switch (kind) {
    case 0:
    case 1:
        put_headers(frames, script, false);
        break;
    case 2:
        put_headers(frames, script, true);
        break;
    case 3:
    case 4:
        put_data(frames, script);
        break;
    case 5:
        put_settings(frames, script);
        break;
    case 6:
        put_strange(frames, script);
        break;
    case 7:
        put_continuation(frames, script);
        break;
    case 8: { /* many frames */
        struct script same = *script;
        for (unsigned n = script_u8(script) + 1u; n > 0; n--) {
            same = *script;
            put_small(frames, small[script_u8(&same) % 5], &same);
        }
        *script = same;
        break;
    }
    case 9: {
        size_t size;
        const uint8_t *data = script_run(script, &size);
        put(frames, data, size);
        break;
    }
    default:
        put_small(frames, small[script_u8(script) % 5], script);
        break;
    }
}
