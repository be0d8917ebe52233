/* SPDX-License-Identifier: Apache-2.0
 *
 * See bench_e2e.h.
 */
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/bench_e2e.h"

enum { FD_MAX = 16, POLL_MS = 20 };
#define START_NS UINT64_C(120000000000)

static int warm_one(const char *path, const struct stat *info, int flag, struct FTW *ftw)
{
    static uint8_t bytes[1 << 20];

    (void)info;
    (void)ftw;
    if (flag == FTW_F) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        while (fd >= 0 && read(fd, bytes, sizeof(bytes)) > 0) {
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    return 0;
}

static hps_status write_config(const struct e2e_hpsd *hpsd, struct hps_error *err)
{
    const char *dir = hpsd->dir;
    const char *type = hpsd->redis != NULL   ? "redis_cluster"
                       : hpsd->with_host_map ? "parallel_hash_map"
                                             : "disabled";
    char path[64];

    (void)snprintf(path, sizeof(path), "%s/hpsd.json", dir);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return hps_error_set(err, HPS_IO, "cannot write %s", path);
    }
    (void)fprintf(file, "{\"supportlonglong\": true,\n \"volatile_db\": {\"type\": \"%s\"", type);
    if (hpsd->redis != NULL) {
        (void)fprintf(file, ", \"address\": \"%s\"", hpsd->redis);
    }
    (void)fprintf(file,
                  "},\n"
                  " \"persistent_db\": {\"type\": \"rocks_db\", \"path\": \"%s/state\"},\n"
                  " \"models\": [{\"model\": \"m\", \"sparse_files\": [\"%s/model/%s.npy\"],\n"
                  "  \"embedding_table_names\": [\"%s\"], \"embedding_vecsize_per_table\": [%u],\n"
                  "  \"default_value_for_each_table\": [0.0],\n"
                  "  \"deployed_device_list\": [0], \"max_batch_size\": 1024,"
                  " \"gpucache\": false}],\n",
                  dir, dir, "feature_0", "feature_0", hpsd->dim);
    if (hpsd->brokers != NULL) {
        (void)fprintf(file, " \"update_source\": {\"type\": \"kafka\", \"brokers\": \"%s\"},\n",
                      hpsd->brokers);
    }
    (void)fprintf(file,
                  " \"server\": {\"listen\": [\"%s\"], \"http_listen\": \"127.0.0.1:0\",\n"
                  "  \"admin_listen\": \"%s\", \"state_dir\": \"%s/state\",\n"
                  "  \"host_dense\": %s, \"drain_delay_ms\": 1}}\n",
                  hpsd->address, hpsd->admin, dir, hpsd->indexed ? "false" : "true");
    return fclose(file) == 0 ? HPS_OK : hps_error_set(err, HPS_IO, "cannot write %s", path);
}

hps_status e2e_hpsd_make(struct e2e_hpsd *hpsd, struct hps_error *err)
{
    char model[64], rows[16], dim[16];
    const char *const argv[] = {HPS_BIN_DIR "/hps-gen",
                                "--tables",
                                "1",
                                "--rows",
                                rows,
                                "--dim",
                                dim,
                                "--format",
                                "npy",
                                "--out",
                                model,
                                NULL};

    (void)snprintf(hpsd->dir, sizeof(hpsd->dir), "/var/tmp/hps-e2e-XXXXXX");
    if (mkdtemp(hpsd->dir) == NULL) {
        return hps_error_set(err, HPS_IO, "cannot make a directory %s", hpsd->dir);
    }
    (void)snprintf(hpsd->address, sizeof(hpsd->address), "unix:%s/grpc.sock", hpsd->dir);
    (void)snprintf(hpsd->admin, sizeof(hpsd->admin), "unix:%s/admin.sock", hpsd->dir);
    (void)snprintf(model, sizeof(model), "%s/model", hpsd->dir);
    (void)snprintf(rows, sizeof(rows), "%u", hpsd->n_rows);
    (void)snprintf(dim, sizeof(dim), "%u", hpsd->dim);
    hps_status status = bench_child_run(argv, err);
    return status == HPS_OK ? write_config(hpsd, err) : status;
}

hps_status e2e_hpsd_start(struct e2e_hpsd *hpsd, struct hps_error *err)
{
    char config[64], state[64], line[256];
    const char *const argv[] = {HPS_BIN_DIR "/hpsd", "--config", config,
                                "--log-level",       "error",    NULL};
    struct hps_client_options options = {.address = hpsd->address};
    uint64_t end_ns = bench_now_ns() + START_NS;
    bool serving = false;

    (void)snprintf(config, sizeof(config), "%s/hpsd.json", hpsd->dir);
    (void)snprintf(state, sizeof(state), "%s/state", hpsd->dir);
    hps_status status = mkdir(state, 0700) == 0 || access(state, W_OK) == 0
                            ? HPS_OK
                            : hps_error_set(err, HPS_IO, "cannot make %s", state);
    if (status == HPS_OK) {
        status =
            bench_child_start(argv, BENCH_CHILD_ANY_CPU, &hpsd->child, line, sizeof(line), err);
    }
    if (status != HPS_OK) {
        return status;
    }
    hpsd->running = true;
    status = hps_client_open(&options, &hpsd->client, err);
    while (status == HPS_OK && !serving) {
        status = hps_client_health(hpsd->client, "", 0, &serving, err);
        if (status == HPS_OK && !serving) {
            (void)poll(NULL, 0, POLL_MS);
            status = bench_now_ns() < end_ns
                         ? HPS_OK
                         : hps_error_set(err, HPS_DEADLINE, "hpsd did not become ready");
        }
    }
    return status;
}

void e2e_hpsd_stop(struct e2e_hpsd *hpsd)
{
    hps_client_close(hpsd->client);
    hpsd->client = NULL;
    if (hpsd->running) {
        bench_child_stop(&hpsd->child);
        hpsd->running = false;
    }
}

void e2e_hpsd_chill(const struct e2e_hpsd *hpsd)
{
    bench_chill(hpsd->dir);
}

void e2e_hpsd_warm(const struct e2e_hpsd *hpsd)
{
    char state[64];

    (void)snprintf(state, sizeof(state), "%s/state", hpsd->dir);
    (void)nftw(state, warm_one, FD_MAX, FTW_PHYS); /* a file that cannot be read is left as it is */
}

hps_status e2e_hpsd_cpu_us(const struct e2e_hpsd *hpsd, double *out_us, struct hps_error *err)
{
    clockid_t clock;

    if (clock_getcpuclockid(hpsd->child.pid, &clock) != 0) {
        return hps_error_set(err, HPS_INTERNAL, "hpsd has no clock");
    }
    *out_us = (double)bench_clock_ns(clock) / 1e3;
    return HPS_OK;
}

double e2e_hpsd_disk_bytes(const struct e2e_hpsd *hpsd)
{
    static const char field[] = "read_bytes: ";
    char path[64], line[128];
    double bytes = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/io", (int)hpsd->child.pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, field, sizeof(field) - 1) == 0) {
            bytes = strtod(line + sizeof(field) - 1, NULL);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return bytes;
}

void e2e_hpsd_remove(struct e2e_hpsd *hpsd)
{
    e2e_hpsd_stop(hpsd);
    if (hpsd->dir[0] != '\0') {
        bench_remove(hpsd->dir);
    }
}
