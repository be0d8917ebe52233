/* SPDX-License-Identifier: Apache-2.0
 *
 * What the audit log gets of admin calls. The fields of a request are found by its descriptor, so
 * that none of a new method is forgotten. On the admin pool; refusals on loops.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "server/access/access.h"
#include "server/admin/op.h"

/* protobuf-c keeps arrays, sub-messages and values at offsets that its descriptors name. */
#define MEMBER(message, field_offset) ((const void *)((const char *)(message) + (field_offset)))

enum { FIELDS_MAX = 32, NAME_BYTES_MAX = 128 };

/* Fields for the log, with names in the arena of the call. */
struct listing {
    struct hps_arena *arena;
    struct hps_log_field fields[FIELDS_MAX + 1]; /* the last one ends them */
    size_t n;
};

static void add(struct listing *listing, const char *name, struct hps_log_field field)
{
    field.name = hps_arena_strndup(listing->arena, name, strlen(name));
    if (field.name != NULL && listing->n < FIELDS_MAX) {
        listing->fields[listing->n++] = field;
    }
}

static void add_text(struct listing *listing, const char *name, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        add(listing, name, HPS_STR(NULL, text));
    }
}

static void add_integer(struct listing *listing, const char *name, int64_t value)
{
    if (value != 0) {
        add(listing, name, HPS_I64(NULL, value));
    }
}

static void add_enum(struct listing *listing, const char *name, const ProtobufCEnumDescriptor *type,
                     int value)
{
    const ProtobufCEnumValue *word = protobuf_c_enum_descriptor_get_value(type, value);
    if (value != 0 && word != NULL) {
        add_text(listing, name, word->name);
    } else {
        add_integer(listing, name, value);
    }
}

static void add_fields(struct listing *listing, const char *prefix,
                       const ProtobufCMessage *message);

/* A default value says nothing, and is left out. */
static void add_value(struct listing *listing, const char *name,
                      const ProtobufCFieldDescriptor *field, const void *value)
{
    const ProtobufCMessage *message;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        add_text(listing, name, *(char *const *)value);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        add_text(listing, name, *(const protobuf_c_boolean *)value ? "true" : "");
        break;
    case PROTOBUF_C_TYPE_INT32:
        add_integer(listing, name, *(const int32_t *)value);
        break;
    case PROTOBUF_C_TYPE_INT64:
        add_integer(listing, name, *(const int64_t *)value);
        break;
    case PROTOBUF_C_TYPE_ENUM:
        add_enum(listing, name, field->descriptor, *(const int *)value);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        message = *(ProtobufCMessage *const *)value;
        if (message != NULL) {
            add_fields(listing, name, message);
        }
        break;
    default: /* no request has such a field; one that gets it is seen to have it */
        add_text(listing, name, "?");
        break;
    }
}

static void add_fields(struct listing *listing, const char *prefix, const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    for (unsigned i = 0; i < type->n_fields && listing->n < FIELDS_MAX; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        const void *at = MEMBER(message, field->offset);
        char name[NAME_BYTES_MAX];
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            (void)snprintf(name, sizeof(name), "%s.%s", prefix, field->name);
            add_value(listing, name, field, at);
            continue;
        }
        bool pointers =
            field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_MESSAGE;
        size_t n = *(const size_t *)MEMBER(message, field->quantifier_offset);
        for (size_t k = 0; pointers && k < n && listing->n < FIELDS_MAX; k++) {
            (void)snprintf(name, sizeof(name), "%s.%s.%zu", prefix, field->name, k);
            add_value(listing, name, field, *(void *const *const *)at + k);
        }
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

void admin_audit(const struct admin_op *op, const char *method)
{
    struct listing listing = {.arena = op->arena};
    HPS_ASSERT(op->request != NULL);
    add_fields(&listing, "request", op->request);
    const struct hps_audit_event event = {
        .method = method,
        .who = hps_access_grant_who(hps_access_grant_of(op->call)),
        .peer = hps_grpc_call_peer(op->call),
        .model = op->model,
        .version = op->version,
        .code = hps_status_grpc_code(op->error.status),
        .error = op->error.status != HPS_OK ? op->error.text : "",
        .request = listing.fields,
    };
    hps_audit_write(op->parts->audit, &event);
}

void admin_audit_refused(const struct hps_admin_parts *parts, const struct hps_grpc_call *call,
                         const char *method, hps_status status, const char *why)
{
    HPS_ASSERT(hps_loop_is_mine(hps_grpc_call_loop(call)));
    const struct hps_audit_event event = {
        .method = method,
        .who = hps_access_grant_who(hps_access_grant_of(call)),
        .peer = hps_grpc_call_peer(call),
        .code = hps_status_grpc_code(status),
        .error = why,
        .refused = true,
    };
    hps_audit_refused(parts->audit, &event);
}
