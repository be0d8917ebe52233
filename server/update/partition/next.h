/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides the next step of a partition: a pure function of facts about the partition and one event.
 * It reads no clock and calls no log. The stream (the thread that applies the updates of a version)
 * gathers the facts, calls update_next for each event, and carries out the step that it returns.
 *
 *     STARTING ─▶ CHECKING ─▶ RUNNING ─▶ STARTING   the log was lost; the batch is read again
 *        │           │           ├─────▶ PAUSED     by an operator
 *        │           │           ├─────▶ BLOCKED    frozen, and other daemons share the only copy
 *        └───────────┴───────────┴─────▶ GAP        records after the position were removed
 *                                        REPLACED   the topic was recreated or truncated
 *                                        MISSING    the log does not have the topic
 *                                        FAILED     the log refuses the records
 *
 * The consumer reads a partition only in the phases CHECKING and RUNNING. A partition without a
 * last applied record starts without CHECKING. These events end the other phases:
 *
 *     STARTING         ON_OFFSETS: CHECKING, RUNNING, PAUSED, GAP, REPLACED, MISSING or FAILED
 *     PAUSED           resume: STARTING
 *     BLOCKED          resume, or the version is no longer frozen: STARTING; seek: RUNNING
 *     GAP, REPLACED    seek, accept-gap: RUNNING
 *     MISSING          a list of topics has the partition: STARTING
 *     FAILED           resume: STARTING; seek: RUNNING
 *
 * If an operator pauses a partition in another phase, it becomes PAUSED instead of CHECKING or
 * RUNNING. A partition becomes MISSING by ON_OFFSETS, after ON_LOST.
 *
 * Claims. A version's *as-of* is a time: every update that was logged before it is applied, or is
 * known to be lost (a gap that was accepted). A partition's as-of may advance to time t only if all
 * of these hold:
 *   - its leader, asked at t, named an end of the log, and all records before it were read
 *   - the topic was known to be the one that was read, at a time after these records were read
 *   - no delete can have been compacted away before it was read
 * It is published together with the rows. Nothing advances while the version is frozen. As-of never
 * goes back, except by seek and accept-gap: then it is unknown until a new end was read.
 *
 * A topic has an id that proves that it is still the topic that was read. Without an id, a
 * *witness* proves it: a record that was read from the topic. The stream recalls (reads again) the
 * witness at intervals. If another record is at its offset, the topic was recreated. If retention
 * or compaction has removed the witness, the topic counts as the same. A leader serves one topic of
 * that name at a time. So a proof for one partition holds for all partitions that have the same
 * leader. There is one condition: each of these partitions was proved to be of this topic at a time
 * when the topic already had the witness. Otherwise it may have been read from an earlier topic.
 * Records of a recreated topic may have been applied before the stream noticed; as-of does not
 * count them.
 *
 * Examples:
 *
 *     leader silent        Nothing is read and no end is named: phase and as-of stay. When it
 *                          responds again, as-of waits for a new proof of the topic.
 *     broker restarted     ON_LOST: STARTING; CHECKING reads the last applied record again;
 *                          RUNNING. Nothing is lost. As-of waits for a new proof and a new end.
 *     topic recreated      REPLACED, by its id, the witness, the last applied record, or an end
 *                          before the position. MISSING while no such topic is listed. What was
 *                          not read of the old topic is lost. accept-gap continues with the first
 *                          record of the new topic.
 *     retention passed     ON_OFFSETS: the position is before the first record: GAP. The records
 *                          between are lost. accept-gap continues with the first record.
 *     no right to read     ON_REFUSED, or ON_LOST and then ON_OFFSETS with PERMISSION: FAILED.
 *                          Nothing is lost. Grant the right, then resume.
 *     disk full            The batch is held and nothing is polled: the phase stays, `read` is past
 *                          `next`, and as-of stays until the batch is applied. If a command drops
 *                          the batch: ON_ABANDONED, STARTING, and it is read again from `next`.
 *     version frozen       Records that name no version are skipped; `skipped` is the first one,
 *                          and as-of stays. If other daemons share the only copy: BLOCKED before
 *                          this record. A seek of any partition ends the freeze: the others get
 *                          ON_THAW and start again, at `skipped`.
 *     seek during a pause  ON_MOVE: the position moves and is stored. The phase stays PAUSED.
 *     deletes compacted    For longer than delete.retention.ms nothing was read up to an end, and
 *                          records were logged since: GAP. Deletes may be lost, no other record
 *                          is. accept-gap continues at the position.
 *     clock set back       No effect: the times here are of a clock that runs on. After a restart,
 *                          a stored time that is later than now counts as not known.
 */
#ifndef HPS_SERVER_UPDATE_PARTITION_NEXT_H
#define HPS_SERVER_UPDATE_PARTITION_NEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/update_log.h"
#include "server/update/partition/position.h"

enum update_phase {
    UPDATE_STARTING, /* waits for the offsets of the log */
    UPDATE_CHECKING, /* assigned; the last applied record is read again and compared */
    UPDATE_RUNNING,  /* assigned; records go into the batch */
    UPDATE_PAUSED,   /* by an operator */
    UPDATE_BLOCKED,  /* the version is frozen and a shared tier has its only copy: it stops before
                        the first record that it would skip */
    UPDATE_GAP,      /* records after the position were removed */
    UPDATE_REPLACED, /* also a gap: the topic or the cluster is another one, or was truncated */
    UPDATE_MISSING,  /* the log does not have the topic or the partition */
    UPDATE_FAILED,   /* the log refuses the records, or cannot deliver them */
    UPDATE_PHASES
};

/* The source of a partition's position. */
enum update_basis {
    UPDATE_NOWHERE,  /* the partition has no position yet */
    UPDATE_ADOPTED,  /* from a shared tier; the next batch stores it */
    UPDATE_PUBLISHED /* stored; lookups see the rows before it */
};

/* Why a partition is in its phase. */
enum update_reason {
    UPDATE_BECAUSE_NOTHING,      /* it is read, starts or was paused */
    UPDATE_BECAUSE_SILENT,       /* STARTING: the leader does not respond */
    UPDATE_BECAUSE_NO_TOPIC,     /* MISSING: the log does not have the topic or partition */
    UPDATE_BECAUSE_FORBIDDEN,    /* FAILED: no permission to read the topic */
    UPDATE_BECAUSE_REFUSED,      /* FAILED: another error of the log */
    UPDATE_BECAUSE_LINEAGE,      /* BLOCKED: the next record is for versions of another lineage */
    UPDATE_BECAUSE_RETENTION,    /* GAP: records after the position were deleted */
    UPDATE_BECAUSE_TOMBSTONES,   /* GAP: deletes may have been compacted away */
    UPDATE_BECAUSE_OLD_FILES,    /* GAP: the files are older than the retention of the topic */
    UPDATE_BECAUSE_CLUSTER,      /* REPLACED: the position is of another cluster */
    UPDATE_BECAUSE_PAST_END,     /* REPLACED: the position is past the end of the log */
    UPDATE_BECAUSE_LAST_MISSING, /* REPLACED: the last applied record is not in the log, and neither
                                    retention nor compaction can have removed it */
    UPDATE_BECAUSE_LAST_OTHER,   /* REPLACED: another record is at its offset */
    UPDATE_BECAUSE_WITNESS,      /* REPLACED: another record is at the offset of the witness */
    UPDATE_BECAUSE_TOPIC_ID,     /* REPLACED: the topic has another id */
    UPDATE_REASONS
};

/* A note about a partition that starts without a position and runs: its rows may lack updates. */
enum update_note {
    UPDATE_NOTE_NONE,
    UPDATE_NOTE_DELETES, /* deletes since the time of the files may be compacted away */
    UPDATE_NOTE_RECORDS  /* the log starts after the time of the files */
};

/* Facts about a partition. An unknown offset is -1, an unknown time 0. Times are Unix ms of
 * hps_clock_forward_ms, which never goes back. */
struct update_facts {
    enum update_phase phase;
    enum update_reason reason; /* why it is in this phase */
    int64_t now_ms;

    bool paused;    /* an operator has paused it */
    bool frozen;    /* its version is frozen */
    bool sole_copy; /* other daemons share the only copy of the rows */

    enum update_basis basis;
    bool other_cluster; /* the position is of a cluster with another id */
    int64_t next;       /* the first record that is not applied */
    int64_t read;       /* the first record that was not read */
    int64_t skipped;    /* the first record that was skipped because the version was frozen */
    int64_t last;       /* the last record before `next` */
    int64_t witness;    /* a record that was read from this topic */

    bool listed; /* the last list of topics has the partition */
    enum hps_compaction compaction;
    int64_t delete_retention_ms; /* -1: not known */
    int64_t kept_ms;             /* the log has all records that are younger; 0: not known */
    bool starts_latest;          /* a partition without a position starts at the end of the log */
    bool starts_by_files;        /* ... at the time of the files */
    bool shared;                 /* other daemons share a tier above this daemon's store */
    int64_t shared_next;         /* the first record that the shared tier has not applied */

    int64_t same_ms; /* at this time the topic was proved to be the one that was read */

    int64_t high;      /* end of the log in the last response of the leader */
    int64_t as_of_ms;  /* all updates logged before are applied */
    int64_t seen_ms;   /* all updates logged before were read, applied or not */
    int64_t seen_next; /* `read` at the time when seen_ms advanced */
    int64_t base_ms;   /* deletes before this time are applied, or known to be lost */
};

enum update_event_kind {
    UPDATE_ON_LISTED,    /* a list of topics arrived; facts.listed is of this list */
    UPDATE_ON_OFFSETS,   /* status, low, high; time_ms, at_time: of the start time */
    UPDATE_ON_RECORD,    /* offset, matches: the first record in the phase CHECKING */
    UPDATE_ON_CAUGHT_UP, /* all records were delivered */
    UPDATE_ON_REFUSED,   /* the consumer cannot read the partition */
    UPDATE_ON_LINEAGE,   /* a record is skipped because the version is frozen */
    UPDATE_ON_RESPONSE,  /* high: the leader responded */
    UPDATE_ON_IDENTITY,  /* matches, time_ms: the topic's id was compared, or the witness of
                            another partition with the same leader matched */
    UPDATE_ON_WITNESS,   /* offset, low, matches, settled, time_ms: the witness was recalled */
    UPDATE_ON_ENDS,      /* high, time_ms, sure_ms: records were read up to an end */
    UPDATE_ON_ABANDONED, /* the batch was dropped: its records are read again */
    UPDATE_ON_LOST,      /* the log or the consumer was lost, or the log does not have the topic, or
                            the offset to read from */
    UPDATE_ON_PAUSE,
    UPDATE_ON_RESUME,
    UPDATE_ON_MOVE,   /* offset: a seek */
    UPDATE_ON_ACCEPT, /* low, high: accept-gap */
    UPDATE_ON_THAW,   /* the version is not frozen any more; this partition was not moved */
    UPDATE_EVENTS
};

struct update_event {
    enum update_event_kind kind;
    hps_status status;
    int64_t low;    /* first record of the log */
    int64_t high;   /* one past its last record */
    int64_t offset; /* of the record; ON_WITNESS: of the first record at or after the witness, or
                       -1 */
    /* ON_OFFSETS: the start time of a partition without a position, or -1. ON_ENDS: when the
     * request for the newest end that was read was sent. Otherwise: when the request was sent. */
    int64_t time_ms;
    int64_t at_time; /* ON_OFFSETS: the offset of time_ms */
    int64_t sure_ms; /* ON_ENDS: when the request for another end was sent. It is the newest end
                        before which all records were read by same_ms, in the witness's topic */
    bool matches;    /* it is the record, or the id, that was read before */
    bool keeps_gap;  /* ON_ABANDONED: a gap stays, since a command is about to end it */
    bool settled;    /* ON_WITNESS: no record was found for so long that compaction is the cause */
};

/* The actions of the stream, carried out in this order. */
enum {
    UPDATE_DO_RESTORE = 1 << 0,  /* `read` goes back to the applied position */
    UPDATE_DO_BEGIN = 1 << 1,    /* make a first position at `offset`, with `skipped`; store it */
    UPDATE_DO_MOVE = 1 << 2,     /* the position moves to `offset`; store it */
    UPDATE_DO_ASSIGN = 1 << 3,   /* read from `offset`; if that fails: ON_REFUSED */
    UPDATE_DO_UNASSIGN = 1 << 4, /* stop reading */
    UPDATE_DO_ASK_OFFSETS = 1 << 5, /* ask for the offsets without a delay */
    UPDATE_DO_ASK_LATER = 1 << 6,   /* ... after a delay */
    UPDATE_DO_ASK_WITNESS = 1 << 7, /* recall the witness, or without one the last record that was
                                       read; after ON_LISTED, any proof of the topic is enough */
    UPDATE_DO_LEARN = 1 << 8,       /* the recalled record, if any, becomes the witness */
    UPDATE_DO_ADVANCE = 1 << 9,     /* the last record that was read before time_ms becomes the
                                        witness */
    UPDATE_DO_CLAIM = 1 << 10,      /* as-of becomes `as_of_ms`; store it if it advanced far */
    UPDATE_DO_FORGET_ENDS = 1 << 11 /* drop the ends that the leader named */
};

struct update_step {
    enum update_phase phase;
    enum update_reason reason;
    enum update_note note;
    unsigned actions; /* UPDATE_DO_* */
    int64_t offset;
    int64_t skipped; /* DO_BEGIN: as hps_position.skipped */
    bool buried;     /* DO_BEGIN: compaction may have removed deletes that are not applied */
    int64_t same_ms;
    int64_t as_of_ms;
    int64_t seen_ms;
};

/* Returns the step that follows `event`. Asserts that the event can happen in this phase, and that
 * the step is in the table of allowed steps. Any thread; no side effects. */
struct update_step update_next(const struct update_facts *facts, const struct update_event *event);

/* Whether the consumer reads a partition in this phase. Any thread. */
static inline bool update_phase_reads(enum update_phase phase)
{
    return phase == UPDATE_CHECKING || phase == UPDATE_RUNNING;
}

/* Whether an operator must end this phase by seek or accept-gap. Any thread. */
static inline bool update_phase_has_gap(enum update_phase phase)
{
    return phase == UPDATE_GAP || phase == UPDATE_REPLACED;
}

#endif
