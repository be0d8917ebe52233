/* SPDX-License-Identifier: Apache-2.0
 *
 * See grpc_frame.h. The input comes from untrusted peers, so each length is checked before it is
 * used. Used by the thread that owns the call.
 */
#include "net/grpc_frame.h"

#include <string.h>

#include "base/assert.h"
#include "base/text.h"

/* Initial capacity of a body, which doubles when it is full. So a peer that only declares a large
 * length causes no large allocation. */
enum { BODY_FIRST_BYTES = 64 * 1024 };

/* A message that was delivered in place leaves no bytes in `body`. */
static void decoder_sane(const struct hps_grpc_decoder *decoder)
{
    bool whole = decoder->n_prefix == HPS_GRPC_PREFIX_BYTES;

    HPS_ASSERT(decoder->n_prefix <= HPS_GRPC_PREFIX_BYTES);
    HPS_ASSERT(whole || (decoder->body.size == 0 && !decoder->delivered));
    HPS_ASSERT(!whole || decoder->size <= decoder->size_max);
    HPS_ASSERT(!whole || decoder->body.size <= decoder->size);
    HPS_ASSERT(decoder->passed == 0 || (decoder->pass && decoder->passed <= decoder->size));
}

void hps_grpc_decoder_init(struct hps_grpc_decoder *decoder, size_t size_max, bool lend)
{
    *decoder = (struct hps_grpc_decoder){.size_max = size_max, .lend = lend};
    hps_buf_init(&decoder->body, 0);
}

void hps_grpc_decoder_fini(struct hps_grpc_decoder *decoder)
{
    hps_buf_fini(&decoder->body);
}

bool hps_grpc_decoder_idle(const struct hps_grpc_decoder *decoder)
{
    return decoder->n_prefix == 0 || decoder->delivered;
}

size_t hps_grpc_decoder_held(const struct hps_grpc_decoder *decoder)
{
    return decoder->body.size;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The prefix is complete. Checks it before memory is allocated. */
static hps_status open_message(struct hps_grpc_decoder *decoder, struct hps_error *err)
{
    const uint8_t *p = decoder->prefix;

    if (p[0] > 1) {
        return hps_error_set(err, HPS_INTERNAL, "message flag is %u, only 0 and 1 are known", p[0]);
    }
    decoder->size = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | (size_t)p[4];
    if (decoder->size > decoder->size_max) {
        return hps_error_set(err, HPS_EXHAUSTED, "message of %zu bytes, the limit is %zu bytes",
                             decoder->size, decoder->size_max);
    }
    decoder->body.size_max = decoder->size;
    return HPS_OK;
}

/* Reserves capacity for `size` more bytes, which belong to the body. */
static hps_status reserve_body(struct hps_grpc_decoder *decoder, size_t size)
{
    struct hps_buf *body = &decoder->body;

    if (size <= body->capacity - body->size) {
        return HPS_OK;
    }
    size_t want = body->size + size;
    size_t room = body->size * 2;
    if (room < BODY_FIRST_BYTES) {
        room = BODY_FIRST_BYTES;
    }
    if (room < want) {
        room = want;
    }
    return hps_buf_reserve(body, min_size(room, decoder->size) - body->size);
}

static hps_status append_body(struct hps_grpc_decoder *decoder, const uint8_t *data, size_t size)
{
    struct hps_buf *body = &decoder->body;

    if (size <= body->capacity - body->size && data == body->data + body->size) {
        body->size += size; /* they were put there: see hps_grpc_decoder_room */
        return HPS_OK;
    }
    hps_status status = reserve_body(decoder, size);
    return status == HPS_OK ? hps_buf_append(body, data, size) : status;
}

uint8_t *hps_grpc_decoder_room(struct hps_grpc_decoder *decoder, size_t size, size_t *out_room)
{
    if (decoder->n_prefix < HPS_GRPC_PREFIX_BYTES || decoder->delivered || decoder->pass) {
        return NULL;
    }
    HPS_DEBUG_SANE(decoder_sane(decoder));
    size_t room = min_size(size, decoder->size - decoder->body.size);
    if (room == 0 || reserve_body(decoder, room) != HPS_OK) {
        return NULL; /* feeding the bytes reports the error */
    }
    *out_room = room;
    return decoder->body.data + decoder->body.size;
}

size_t hps_grpc_decoder_left(const struct hps_grpc_decoder *decoder)
{
    return decoder->pass && decoder->n_prefix == HPS_GRPC_PREFIX_BYTES && !decoder->delivered
               ? decoder->size - decoder->passed
               : 0;
}

/* Begins the next message. Frees a large buffer, because its bytes are not counted any more. */
static void forget_message(struct hps_grpc_decoder *decoder)
{
    decoder->delivered = false;
    decoder->n_prefix = 0;
    decoder->passed = 0;
    if (decoder->body.capacity > BODY_FIRST_BYTES) {
        hps_buf_fini(&decoder->body);
    } else {
        hps_buf_clear(&decoder->body);
    }
}

hps_status hps_grpc_decoder_feed(struct hps_grpc_decoder *decoder, const uint8_t *data, size_t size,
                                 size_t *out_used, struct hps_grpc_message *out_message,
                                 bool *out_complete, struct hps_error *err)
{
    size_t used = 0;

    if (decoder->delivered) {
        forget_message(decoder);
    }
    if (decoder->n_prefix < HPS_GRPC_PREFIX_BYTES) {
        used = min_size(size, (size_t)(HPS_GRPC_PREFIX_BYTES - decoder->n_prefix));
        if (used > 0) {
            memcpy(decoder->prefix + decoder->n_prefix, data, used);
        }
        decoder->n_prefix = (uint8_t)(decoder->n_prefix + used);
        if (decoder->n_prefix < HPS_GRPC_PREFIX_BYTES) {
            *out_message = (struct hps_grpc_message){0};
            *out_used = used;
            *out_complete = false;
            return HPS_OK;
        }
        hps_status status = open_message(decoder, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    size_t left = decoder->size - decoder->body.size - decoder->passed;
    size_t take = min_size(left, size - used);
    if (decoder->pass) {
        *out_message = (struct hps_grpc_message){.data = data + used, .size = take};
        decoder->passed += take;
    } else if (decoder->lend && decoder->body.size == 0 && take == decoder->size) {
        *out_message = (struct hps_grpc_message){.data = data + used, .size = take};
    } else {
        hps_status status = take == 0 ? HPS_OK : append_body(decoder, data + used, take);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "no memory for a message of %zu bytes",
                                 decoder->size);
        }
        *out_message =
            (struct hps_grpc_message){.data = decoder->body.data, .size = decoder->body.size};
    }
    out_message->compressed = decoder->prefix[0] == 1;
    decoder->delivered = take == left;
    HPS_DEBUG_SANE(decoder_sane(decoder));
    *out_used = used + take;
    *out_complete = decoder->delivered;
    return HPS_OK;
}

void hps_grpc_prefix_write(uint8_t out[HPS_GRPC_PREFIX_BYTES], size_t size)
{
    HPS_ASSERT(size <= UINT32_MAX);
    out[0] = 0;
    out[1] = (uint8_t)(size >> 24);
    out[2] = (uint8_t)(size >> 16);
    out[3] = (uint8_t)(size >> 8);
    out[4] = (uint8_t)size;
}

bool hps_grpc_timeout_parse(const char *text, size_t size, uint64_t *out_us)
{
    uint64_t n = 0;

    if (size < 2 || size > 9) {
        return false;
    }
    for (size_t i = 0; i + 1 < size; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        n = n * 10 + (uint64_t)(text[i] - '0');
    }
    switch (text[size - 1]) {
    case 'H':
        *out_us = n * 3600u * 1000000u;
        return true;
    case 'M':
        *out_us = n * 60u * 1000000u;
        return true;
    case 'S':
        *out_us = n * 1000000u;
        return true;
    case 'm':
        *out_us = n * 1000u;
        return true;
    case 'u':
        *out_us = n;
        return true;
    case 'n':
        *out_us = (n + 999u) / 1000u;
        return true;
    default:
        return false;
    }
}

void hps_grpc_timeout_format(uint64_t us, char out[HPS_GRPC_TIMEOUT_CHARS])
{
    static const struct {
        uint64_t us;
        char unit;
    } units[] = {
        {1, 'u'}, {1000, 'm'}, {1000000, 'S'}, {60u * 1000000u, 'M'}, {3600u * 1000000ull, 'H'}};
    uint64_t n = us;
    char unit = 'u';
    char digits[8];
    unsigned n_digits = 0;

    for (unsigned i = 0; i < sizeof units / sizeof *units; i++) {
        n = us / units[i].us + (us % units[i].us != 0);
        unit = units[i].unit;
        if (n <= 99999999u) {
            break;
        }
    }
    if (n > 99999999u) {
        n = 99999999u;
    }
    do {
        digits[n_digits++] = (char)('0' + n % 10);
        n /= 10;
    } while (n > 0);
    for (unsigned i = 0; i < n_digits; i++) {
        out[i] = digits[n_digits - 1 - i];
    }
    out[n_digits] = unit;
    out[n_digits + 1] = '\0';
}

hps_status hps_grpc_message_encode(struct hps_buf *out, const char *text)
{
    static const char hex[] = "0123456789ABCDEF";

    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        char escape[3] = {(char)*p, 0, 0};
        size_t n = 1;
        bool at_end = p == (const unsigned char *)text || p[1] == '\0';
        /* HTTP/2 does not allow a field that begins or ends with a space. */
        if (*p < 0x20 || *p > 0x7e || *p == '%' || (*p == ' ' && at_end)) {
            escape[0] = '%';
            escape[1] = hex[*p >> 4];
            escape[2] = hex[*p & 15];
            n = 3;
        }
        hps_status status = hps_buf_append(out, escape, n);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

hps_status hps_grpc_message_decode(struct hps_buf *out, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c == '%' && size - i > 2 && hps_text_hex(text[i + 1]) >= 0 &&
            hps_text_hex(text[i + 2]) >= 0) {
            c = (char)(hps_text_hex(text[i + 1]) << 4 | hps_text_hex(text[i + 2]));
            i += 2;
        }
        hps_status status = hps_buf_append(out, &c, 1);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

int hps_grpc_code_of_reset(uint32_t h2_error)
{
    switch (h2_error) {
    case 0x7: /* REFUSED_STREAM: the server did nothing, so the client may send the call again */
        return 14;
    case 0x8: /* CANCEL */
        return 1;
    case 0xb: /* ENHANCE_YOUR_CALM */
        return 8;
    case 0xc: /* INADEQUATE_SECURITY */
        return 7;
    default:
        return 13;
    }
}

int hps_grpc_code_of_http(unsigned http_status)
{
    switch (http_status) {
    case 400:
        return 13;
    case 401:
        return 16;
    case 403:
        return 7;
    case 404:
        return 12;
    case 429:
    case 502:
    case 503:
    case 504:
        return 14;
    default:
        return 2;
    }
}
