/* SPDX-License-Identifier: Apache-2.0
 *
 * Single flight: lookups of one version that miss the same key at the same time fetch it once. The
 * first lookup *leads* the key and fetches it. Other lookups wait for the leader, and each gets a
 * copy of the row. But if an update has changed the key since the leader's `since`, other lookups
 * fetch it themselves. A lookup fetches all keys that it leads before it waits for others, so
 * lookups never wait in a circle. Thread-safe; no lock is held during a call of a store.
 *
 *     join ─┬─▶ LEADS ── fetch ─┬─ land ──▶ ALONE; waiting keys become FOUND or ABSENT
 *           │                   └─ leave ─▶ ALONE; the first waiting key becomes LEADS
 *           ├─▶ WAITS ─┬─ the leader lands ──▶ FOUND or ABSENT
 *           │          ├─ the leader leaves ─▶ LEADS, or it still waits, for the new leader
 *           │          └─ leave ─▶ ALONE
 *           └─▶ ALONE (an update has changed the key): fetch it without sharing
 */
#ifndef HPS_CACHE_VERSION_FLIGHT_H
#define HPS_CACHE_VERSION_FLIGHT_H

#include <stdatomic.h>

#include "base/lock.h"
#include "base/status.h"
#include "base/types.h"
#include "cache/version/stamps.h"

struct hps_flight; /* of one version */

enum hps_flight_state {
    HPS_FLIGHT_ALONE, /* its fetch is not shared, or no longer */
    HPS_FLIGHT_LEADS, /* its lookup fetches the key, also for the keys that wait */
    HPS_FLIGHT_WAITS, /* another lookup fetches the key */
    HPS_FLIGHT_FOUND, /* the other lookup found it; `row` is a copy */
    HPS_FLIGHT_ABSENT /* the other lookup found that no tier has it */
};

/* Counts the keys of one lookup that wait for other lookups. It may live on the stack. */
struct hps_flight_trip {
    struct hps_lock lock;
    struct hps_cond changed;
    uint32_t n_waiting;  /* keys in the state WAITS */
    uint32_t n_promoted; /* keys that changed from WAITS to LEADS, less those reported to
                            hps_flight_take_promoted */
};

/* One key of a lookup. The memory belongs to the lookup; it must stay until the key has landed or
 * left. */
struct hps_flight_key {
    /* set by the lookup before it joins */
    hps_key key;
    uint8_t *row; /* [row_bytes] where the row is copied to */
    uint32_t row_bytes;
    uint32_t table_id;
    uint64_t since; /* hps_stamps_now, read before its lookup fetches any key (stamps.h) */

    _Atomic uint8_t state; /* enum hps_flight_state; its lookup may read it at any time */
    uint8_t tier;          /* FOUND: enum hps_tier_kind of the tier that had the row */
    struct hps_flight_trip *trip;
    struct hps_flight_key *next;    /* LEADS: next in the hash chain; WAITS: next waiting key */
    struct hps_flight_key *waiting; /* LEADS: keys that wait for it, in order of arrival */
    struct hps_flight_key *last;    /* LEADS: the last of `waiting` */
};

/* NULL: no memory. */
struct hps_flight *hps_flight_new(void);
void hps_flight_free(struct hps_flight *flight); /* every key has landed or left; may be NULL */

void hps_flight_trip_begin(struct hps_flight_trip *trip);
void hps_flight_trip_end(struct hps_flight_trip *trip); /* every key has landed or left */

/* Share the fetch of a key. Returns LEADS, WAITS or ALONE. After WAITS, key->state may have changed
 * already. */
enum hps_flight_state hps_flight_join(struct hps_flight *flight, struct hps_flight_trip *trip,
                                      const struct hps_stamps *stamps, struct hps_flight_key *key);

/* The lookup has fetched a key: copy `row` (NULL: no tier has it) to the lookups that wait for the
 * key. Only the leading lookup inserts the row into higher tiers; the waiting ones do not. No
 * effect if this trip does not lead the key. */
void hps_flight_land(struct hps_flight *flight, const struct hps_flight_trip *trip,
                     uint32_t table_id, hps_key key, const uint8_t *row, uint8_t tier);

/* Give up a key in any state. Afterwards no other thread writes to its row or to the key. */
void hps_flight_leave(struct hps_flight *flight, struct hps_flight_key *key);

/* Wait until no key of the trip waits or one has become LEADS, for at most max_us. Returns whether
 * either is true. */
bool hps_flight_wait(struct hps_flight_trip *trip, uint32_t max_us);
/* The lookup has seen n more of its keys change from WAITS to LEADS. hps_flight_wait no longer
 * returns for them. */
void hps_flight_take_promoted(struct hps_flight_trip *trip, uint32_t n);

#endif
