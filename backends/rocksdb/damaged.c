/* SPDX-License-Identifier: Apache-2.0
 *
 * Families with damage in their files. A compaction that reads a damaged block stops all writes,
 * even writes that would replace or unload the family. It would do so again after each restart. So
 * the file `<dir>/hpsd.damaged` lists the families that are no longer compacted, one per line.
 *
 * The thread that opens the store reads the file. RocksDB's threads note damage, without the
 * store's lock. rocksdb-sync writes the file, and so does the thread that drops such a family.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/rocksdb/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/rows/fileio.h"

#define LIST "hpsd.damaged"

char *hps_rocksdb_damaged_read(const struct hps_rocksdb *store, struct hps_error *err,
                               hps_status *out_status)
{
    char *names = NULL;
    struct stat info;
    int fd = -1;
    hps_status status = hps_dir_open_file(&store->dir.at, LIST, O_RDONLY, &fd, err);
    if (status == HPS_OK) {
        size_t bytes = fstat(fd, &info) == 0 ? (size_t)info.st_size : 0;
        names = hps_calloc(1, bytes + 1);
        status = names != NULL ? hps_file_pread(fd, LIST, names, bytes, 0, err)
                               : hps_rocksdb_fail_memory(err);
        close(fd);
    }
    *out_status = status == HPS_NOT_FOUND ? HPS_OK : status;
    return names;
}

bool hps_rocksdb_damaged_names(const char *names, const char *name)
{
    size_t size = strlen(name);
    for (const char *at = names; at != NULL && *at != '\0';) {
        const char *end = strchrnul(at, '\n');
        if ((size_t)(end - at) == size && memcmp(at, name, size) == 0) {
            return true;
        }
        at = *end != '\0' ? end + 1 : end;
    }
    return false;
}

hps_status hps_rocksdb_damaged_write(struct hps_rocksdb *store, struct hps_error *err)
{
    size_t size = 0;
    hps_lock_assert_held(&store->lock);
    for (const struct hps_rocksdb_family *f = store->families; f != NULL; f = f->next) {
        size += f->damaged ? strlen(f->name) + 1 : 0;
    }
    char *path = hps_rocksdb_dir_join(store->dir.dir, LIST);
    char *names = hps_alloc(size + 1);
    hps_status status = path != NULL && names != NULL ? HPS_OK : hps_rocksdb_fail_memory(err);
    size_t at = 0;
    for (const struct hps_rocksdb_family *f = store->families; status == HPS_OK && f != NULL;
         f = f->next) {
        if (f->damaged) {
            at += (size_t)snprintf(names + at, size + 1 - at, "%s\n", f->name);
        }
    }
    HPS_ASSERT(status != HPS_OK || at == size);
    if (status == HPS_OK && size > 0) {
        status = hps_file_replace(path, names, size, err);
    } else if (status == HPS_OK && unlinkat(store->dir.at.fd, LIST, 0) != 0 && errno != ENOENT) {
        status = hps_rocksdb_dir_fail(err, "cannot remove", path);
    }
    hps_free(names);
    hps_free(path);
    return status;
}

/* ---- newly found damage ---------------------------------------------------------------------- */

void hps_rocksdb_damaged_note(struct hps_rocksdb *store, const char *family)
{
    struct hps_rocksdb_damage *damage = hps_alloc(sizeof(*damage));
    if (damage == NULL) {
        HPS_LOG(ERROR, "rocksdb", "damage not recorded: out of memory", HPS_STR("family", family));
        return;
    }
    (void)snprintf(damage->family, sizeof(damage->family), "%s", family);
    hps_lock_acquire(&store->health.lock);
    damage->next = store->health.damages;
    store->health.damages = damage;
    hps_lock_release(&store->health.lock);
}

static void family_mark(struct hps_rocksdb *store, const char *name)
{
    struct hps_error error;
    hps_status status = HPS_OK;
    hps_lock_acquire(&store->lock);
    struct hps_rocksdb_family *f = store->families;
    while (f != NULL && strcmp(f->name, name) != 0) {
        f = f->next;
    }
    bool found = f != NULL && !f->damaged;
    if (found) {
        f->damaged = true;
        status = hps_rocksdb_damaged_write(store, &error);
    }
    hps_lock_release(&store->lock);
    if (found) {
        HPS_LOG(ERROR, "rocksdb",
                "version damaged: a compaction found a corrupt block; restart hpsd, then replace "
                "the version",
                HPS_STR("family", name));
    }
    if (status != HPS_OK) {
        HPS_LOG(ERROR, "rocksdb", "damage not recorded", HPS_STR("family", name),
                HPS_STR("error", error.text));
    }
}

void hps_rocksdb_damaged_mark(struct hps_rocksdb *store)
{
    hps_lock_acquire(&store->health.lock);
    struct hps_rocksdb_damage *damages = store->health.damages;
    store->health.damages = NULL;
    hps_lock_release(&store->health.lock);
    while (damages != NULL) {
        struct hps_rocksdb_damage *damage = damages;
        damages = damage->next;
        family_mark(store, damage->family);
        hps_free(damage);
    }
}
