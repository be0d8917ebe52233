/* SPDX-License-Identifier: Apache-2.0
 *
 * The metric registry. One mutex protects the table of series; an update of a series is one atomic
 * operation. Memory of a removed series is kept until the registry is freed, because its owner may
 * still hold the pointer; hps_metric_get makes it live again. Any thread.
 */
#include "base/metric.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/text.h"

enum { N_HASH = 1024, HOOKS_MAX = 32, CACHE_LINE = 64, LABEL_NAME_MAX = 32 };
enum { VALUE_SHOWN_BYTES = 1024 };

/* Upper bounds in microseconds. */
static const uint64_t buckets_latency_us[HPS_METRIC_BUCKETS] = {
    50,    100,   250,    500,    1000,   2500,    5000,    10000,
    25000, 50000, 100000, 250000, 500000, 1000000, 2500000, 5000000,
};
static const uint64_t buckets_freshness_us[HPS_METRIC_BUCKETS] = {
    1000,    2500,    5000,     10000,    25000,     50000,     100000,     250000,
    1000000, 5000000, 15000000, 60000000, 300000000, 900000000, 1800000000, 3600000000,
};

struct family {
    struct hps_metric_family_def def;
    char label_names[HPS_METRIC_LABELS_MAX][LABEL_NAME_MAX];
    unsigned n_labels;
    bool of_tables;
    const uint64_t *bounds_us;
    struct hps_metric *first; /* lock; in order of creation */
    struct hps_metric *last;  /* lock */
};

struct histogram {
    _Atomic uint64_t sum_us;
    _Atomic uint64_t counts[HPS_METRIC_BUCKETS + 1]; /* the last one: above all bounds */
};

struct hps_metric {
    const struct family *family;  /* NULL: the dropped series, which ignores updates */
    struct histogram *histogram;  /* histograms only; after this struct in memory */
    _Atomic uint64_t value;       /* counter; gauge: the bits of a double */
    struct hps_metric *next;      /* in its family */
    struct hps_metric *next_hash; /* in its hash chain */
    uint64_t hash;
    bool live;    /* lock; not removed */
    bool printed; /* lock; live, and within the limit */
    char *values; /* label values, each ended by NUL */
};

struct hook {
    void (*fn)(void *ctx);
    void *ctx;
};

struct hps_metrics {
    struct hps_lock lock;
    struct hps_metric *hash[N_HASH]; /* lock */
    unsigned n_of_tables;            /* lock; printed */
    unsigned of_tables_max;
    struct hps_metric dropped;
    uint64_t n_unprinted;         /* lock; live series beyond the limit */
    uint64_t n_no_memory;         /* lock */
    struct hook hooks[HOOKS_MAX]; /* lock */
    unsigned n_hooks;             /* lock */
    double start_seconds;         /* Unix time at which the process started */
    unsigned n_families;
    struct family families[];
};

/* From /proc/self/stat. */
struct process_stat {
    uint64_t cpu_ticks;
    uint64_t start_ticks; /* since boot */
    uint64_t virtual_bytes;
    uint64_t resident_pages;
};

static bool process_stat_read(struct process_stat *out_stat)
{
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t size = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (size <= 0) {
        return false;
    }
    text[size] = '\0';
    const char *at = strrchr(text, ')'); /* the name before it may contain anything */
    uint64_t user;
    uint64_t system;
    if (at == NULL || sscanf(at,
                             ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64
                             " %*d %*d %*d %*d %*d %*d %" SCNu64 " %" SCNu64 " %" SCNu64,
                             &user, &system, &out_stat->start_ticks, &out_stat->virtual_bytes,
                             &out_stat->resident_pages) != 5) {
        return false;
    }
    out_stat->cpu_ticks = user + system;
    return true;
}

static double process_start_seconds(void)
{
    struct process_stat stat;
    struct timespec wall;
    struct timespec boot;
    if (!process_stat_read(&stat) || clock_gettime(CLOCK_REALTIME, &wall) != 0 ||
        clock_gettime(CLOCK_BOOTTIME, &boot) != 0) {
        return 0;
    }
    double booted =
        (double)(wall.tv_sec - boot.tv_sec) + (double)(wall.tv_nsec - boot.tv_nsec) / 1e9;
    double start = booted + (double)stat.start_ticks / (double)sysconf(_SC_CLK_TCK);
    return floor(start * 100) / 100;
}

static void family_init(struct family *family, const struct hps_metric_family_def *def)
{
    family->def = *def;
    family->bounds_us =
        strstr(def->name, "freshness") != NULL ? buckets_freshness_us : buckets_latency_us;
    const char *at = def->labels;
    while (*at != '\0') {
        size_t length = strcspn(at, ",");
        HPS_ASSERT(family->n_labels < HPS_METRIC_LABELS_MAX);
        HPS_ASSERT(length > 0 && length < LABEL_NAME_MAX);
        memcpy(family->label_names[family->n_labels], at, length);
        family->label_names[family->n_labels][length] = '\0';
        family->of_tables |= strcmp(family->label_names[family->n_labels], "table") == 0;
        family->n_labels++;
        at += length;
        at += *at == ',' ? 1 : 0;
    }
}

struct hps_metrics *hps_metrics_new(const struct hps_metric_family_def *defs, unsigned n_defs,
                                    unsigned table_series_max)
{
    struct hps_metrics *metrics =
        hps_calloc(1, sizeof(*metrics) + n_defs * sizeof(metrics->families[0]));
    if (metrics == NULL) {
        return NULL;
    }
    hps_lock_init(&metrics->lock, HPS_LOCK_METRICS);
    metrics->of_tables_max = table_series_max;
    metrics->start_seconds = process_start_seconds();
    metrics->n_families = n_defs;
    for (unsigned i = 0; i < n_defs; i++) {
        family_init(&metrics->families[i], &defs[i]);
    }
    return metrics;
}

void hps_metrics_free(struct hps_metrics *metrics)
{
    if (metrics == NULL) {
        return;
    }
    for (unsigned i = 0; i < metrics->n_families; i++) {
        struct hps_metric *metric = metrics->families[i].first;
        while (metric != NULL) {
            struct hps_metric *next = metric->next;
            hps_free_aligned(metric);
            metric = next;
        }
    }
    hps_lock_fini(&metrics->lock);
    hps_free(metrics);
}

/* FNV-1a over the family and the values with their NULs. */
static uint64_t series_hash(unsigned family, unsigned n_values, const char *const *values)
{
    uint64_t hash = (0xcbf29ce484222325u ^ family) * 0x100000001b3u;
    for (unsigned i = 0; i < n_values; i++) {
        const char *at = values[i];
        do {
            hash = (hash ^ (uint8_t)*at) * 0x100000001b3u;
        } while (*at++ != '\0');
    }
    return hash;
}

static bool series_is(const struct hps_metric *metric, const struct family *family,
                      const char *const *values)
{
    if (metric->family != family) {
        return false;
    }
    const char *at = metric->values;
    for (unsigned i = 0; i < family->n_labels; i++) {
        if (strcmp(at, values[i]) != 0) {
            return false;
        }
        at += strlen(at) + 1;
    }
    return true;
}

/* One allocation in whole cache lines: the series, its histogram, its label values. */
static struct hps_metric *series_new(const struct family *family, const char *const *values)
{
    size_t histogram_size = family->def.type == HPS_METRIC_HISTOGRAM ? sizeof(struct histogram) : 0;
    size_t values_size = 0;
    for (unsigned i = 0; i < family->n_labels; i++) {
        values_size += strlen(values[i]) + 1;
    }
    size_t size = sizeof(struct hps_metric) + histogram_size + values_size;
    size = (size + CACHE_LINE - 1) & ~(size_t)(CACHE_LINE - 1);
    struct hps_metric *metric = hps_alloc_aligned(CACHE_LINE, size);
    if (metric == NULL) {
        return NULL;
    }
    memset(metric, 0, size);
    metric->family = family;
    if (histogram_size != 0) {
        metric->histogram = (struct histogram *)(metric + 1);
    }
    metric->values = (char *)(metric + 1) + histogram_size;
    char *at = metric->values;
    for (unsigned i = 0; i < family->n_labels; i++) {
        size_t length = strlen(values[i]) + 1;
        memcpy(at, values[i], length);
        at += length;
    }
    return metric;
}

static void series_zero(struct hps_metric *metric)
{
    atomic_store(&metric->value, 0);
    if (metric->histogram != NULL) {
        atomic_store(&metric->histogram->sum_us, 0);
        for (unsigned i = 0; i <= HPS_METRIC_BUCKETS; i++) {
            atomic_store(&metric->histogram->counts[i], 0);
        }
    }
}

static struct hps_metric *series_find(struct hps_metrics *metrics, const struct family *family,
                                      uint64_t hash, const char *const *values)
{
    struct hps_metric *metric = metrics->hash[hash % N_HASH];
    while (metric != NULL && (metric->hash != hash || !series_is(metric, family, values))) {
        metric = metric->next_hash;
    }
    return metric;
}

/* lock is held. */
static void series_show(struct hps_metrics *metrics, struct hps_metric *metric)
{
    hps_lock_assert_held(&metrics->lock);
    HPS_ASSERT(!metric->live && !metric->printed);
    bool of_tables = metric->family->of_tables;
    metric->live = true;
    metric->printed = !of_tables || metrics->n_of_tables < metrics->of_tables_max;
    metrics->n_of_tables += of_tables && metric->printed ? 1 : 0;
    metrics->n_unprinted += metric->printed ? 0 : 1;
}

/* lock is held. */
static void series_hide(struct hps_metrics *metrics, struct hps_metric *metric)
{
    hps_lock_assert_held(&metrics->lock);
    HPS_ASSERT(metric->live && metric->family != NULL);
    HPS_ASSERT(metric->printed ? !metric->family->of_tables || metrics->n_of_tables > 0
                               : metrics->n_unprinted > 0);
    metrics->n_of_tables -= metric->family->of_tables && metric->printed ? 1 : 0;
    metrics->n_unprinted -= metric->printed ? 0 : 1;
    metric->live = metric->printed = false;
}

/* Find, revive or make; NULL: no memory. lock is held. */
static struct hps_metric *series_get(struct hps_metrics *metrics, struct family *family,
                                     uint64_t hash, const char *const *values)
{
    struct hps_metric *metric = series_find(metrics, family, hash, values);
    if (metric != NULL && metric->live) {
        if (!metric->printed) { /* the limit may allow it now */
            series_hide(metrics, metric);
            series_show(metrics, metric);
        }
        return metric;
    }
    if (metric != NULL) {
        series_zero(metric);
    } else {
        metric = series_new(family, values);
        if (metric == NULL) {
            return NULL;
        }
        metric->hash = hash;
        metric->next_hash = metrics->hash[hash % N_HASH];
        metrics->hash[hash % N_HASH] = metric;
        if (family->first == NULL) {
            family->first = metric;
        } else {
            family->last->next = metric;
        }
        family->last = metric;
    }
    series_show(metrics, metric);
    return metric;
}

struct hps_metric *hps_metric_get(struct hps_metrics *metrics, unsigned family,
                                  const char *const *values)
{
    HPS_ASSERT(family < metrics->n_families);
    struct family *its = &metrics->families[family];
    uint64_t hash = series_hash(family, its->n_labels, values);
    hps_lock_acquire(&metrics->lock);
    struct hps_metric *metric = series_get(metrics, its, hash, values);
    if (metric == NULL) {
        metrics->n_no_memory++;
        metric = &metrics->dropped;
    }
    hps_lock_release(&metrics->lock);
    return metric;
}

static bool series_has(const struct hps_metric *metric, const char *label, const char *value)
{
    const char *at = metric->values;
    for (unsigned i = 0; i < metric->family->n_labels; i++) {
        if (strcmp(metric->family->label_names[i], label) == 0 && strcmp(at, value) == 0) {
            return true;
        }
        at += strlen(at) + 1;
    }
    return false;
}

void hps_metrics_remove(struct hps_metrics *metrics, const struct hps_metric_label *labels,
                        unsigned n_labels)
{
    hps_lock_acquire(&metrics->lock);
    for (unsigned i = 0; i < metrics->n_families; i++) {
        for (struct hps_metric *metric = metrics->families[i].first; metric != NULL;
             metric = metric->next) {
            unsigned n_same = 0;
            while (n_same < n_labels &&
                   series_has(metric, labels[n_same].name, labels[n_same].value)) {
                n_same++;
            }
            if (metric->live && n_same == n_labels) {
                series_hide(metrics, metric);
            }
        }
    }
    hps_lock_release(&metrics->lock);
}

void hps_metrics_clear(struct hps_metrics *metrics, unsigned family)
{
    HPS_ASSERT(family < metrics->n_families);
    hps_lock_acquire(&metrics->lock);
    for (struct hps_metric *metric = metrics->families[family].first; metric != NULL;
         metric = metric->next) {
        if (metric->live) {
            series_hide(metrics, metric);
        }
    }
    hps_lock_release(&metrics->lock);
}

/* Whether updates count: the dropped series ignores them. */
static bool metric_takes(const struct hps_metric *metric, enum hps_metric_type type)
{
    HPS_ASSERT(metric->family == NULL || metric->family->def.type == type);
    return metric->family != NULL;
}

static uint64_t double_to_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double double_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

void hps_metric_add(struct hps_metric *metric, uint64_t n)
{
    if (metric_takes(metric, HPS_METRIC_COUNTER)) {
        atomic_fetch_add_explicit(&metric->value, n, memory_order_relaxed);
    }
}

void hps_metric_set(struct hps_metric *metric, double value)
{
    if (metric_takes(metric, HPS_METRIC_GAUGE)) {
        atomic_store_explicit(&metric->value, double_to_bits(value), memory_order_relaxed);
    }
}

void hps_metric_gauge_add(struct hps_metric *metric, double n)
{
    if (!metric_takes(metric, HPS_METRIC_GAUGE)) {
        return;
    }
    uint64_t old = atomic_load_explicit(&metric->value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&metric->value, &old,
                                                  double_to_bits(double_from_bits(old) + n),
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

void hps_metric_observe_us(struct hps_metric *metric, uint64_t us)
{
    if (!metric_takes(metric, HPS_METRIC_HISTOGRAM)) {
        return;
    }
    unsigned bucket = 0;
    while (bucket < HPS_METRIC_BUCKETS && us > metric->family->bounds_us[bucket]) {
        bucket++;
    }
    atomic_fetch_add_explicit(&metric->histogram->sum_us, us, memory_order_relaxed);
    atomic_fetch_add_explicit(&metric->histogram->counts[bucket], 1, memory_order_relaxed);
}

double hps_metric_value(const struct hps_metric *metric)
{
    if (metric->histogram != NULL) {
        uint64_t count = 0;
        for (unsigned i = 0; i <= HPS_METRIC_BUCKETS; i++) {
            count += atomic_load_explicit(&metric->histogram->counts[i], memory_order_relaxed);
        }
        return (double)count;
    }
    uint64_t value = atomic_load_explicit(&metric->value, memory_order_relaxed);
    HPS_ASSERT(metric->family == NULL || metric->family->def.type != HPS_METRIC_HISTOGRAM);
    bool gauge = metric->family != NULL && metric->family->def.type == HPS_METRIC_GAUGE;
    return gauge ? double_from_bits(value) : (double)value;
}

void hps_metrics_on_print(struct hps_metrics *metrics, void (*fn)(void *ctx), void *ctx)
{
    HPS_ASSERT(fn != NULL);
    hps_lock_acquire(&metrics->lock);
    HPS_ASSERT(metrics->n_hooks < HOOKS_MAX);
    metrics->hooks[metrics->n_hooks++] = (struct hook){fn, ctx};
    hps_lock_release(&metrics->lock);
}

static void print_escaped(struct hps_buf *out, const char *text, bool escape_quotes)
{
    while (*text != '\0' && out->status == HPS_OK) {
        size_t plain = strcspn(text, escape_quotes ? "\\\n\"" : "\\\n");
        hps_buf_put_bytes(out, text, plain);
        text += plain;
        if (*text != '\0') {
            hps_buf_putf(out, "\\%c", *text == '\n' ? 'n' : *text);
            text++;
        }
    }
}

/* Print a label value. Bytes that are not UTF-8 would make a scraper reject the whole page. */
static void print_value(struct hps_buf *out, const char *value)
{
    size_t size = strlen(value);
    if (hps_text_is_plain(value, size)) {
        print_escaped(out, value, true);
    } else {
        char shown[VALUE_SHOWN_BYTES];
        (void)hps_text_plain(value, size, shown, sizeof(shown));
        print_escaped(out, shown, true);
    }
}

static void print_double(struct hps_buf *out, double value)
{
    char text[HPS_TEXT_F64_BYTES];

    hps_buf_putf(out, "%s", hps_text_f64(value, text));
}

static void print_head(struct hps_buf *out, const char *prefix, const char *name, const char *help,
                       const char *type)
{
    hps_buf_putf(out, "# HELP %s%s ", prefix, name);
    print_escaped(out, help, false);
    hps_buf_putf(out, "\n# TYPE %s%s %s\n", prefix, name, type);
}

/* Print hpsd_NAME_SUFFIX{a="x",le="le"} and a space; le may be NULL. */
static void print_name(struct hps_buf *out, const struct hps_metric *metric, const char *suffix,
                       const char *le)
{
    const struct family *family = metric->family;
    hps_buf_putf(out, "hpsd_%s%s", family->def.name, suffix);
    const char *at = metric->values;
    for (unsigned i = 0; i < family->n_labels; i++) {
        hps_buf_putf(out, "%c%s=\"", i == 0 ? '{' : ',', family->label_names[i]);
        print_value(out, at);
        hps_buf_putf(out, "\"");
        at += strlen(at) + 1;
    }
    if (le != NULL) {
        hps_buf_putf(out, "%cle=\"%s\"", family->n_labels == 0 ? '{' : ',', le);
    }
    hps_buf_putf(out, "%s ", family->n_labels != 0 || le != NULL ? "}" : "");
}

static void print_histogram(struct hps_buf *out, const struct hps_metric *metric)
{
    /* Read the sum first. An observation adds to it first, so the sum is never far behind the
     * counts. */
    uint64_t sum_us = atomic_load_explicit(&metric->histogram->sum_us, memory_order_relaxed);
    uint64_t count = 0;
    for (unsigned i = 0; i <= HPS_METRIC_BUCKETS; i++) {
        char le[32] = "+Inf";
        if (i < HPS_METRIC_BUCKETS) {
            snprintf(le, sizeof(le), "%g", (double)metric->family->bounds_us[i] / 1e6);
        }
        count += atomic_load_explicit(&metric->histogram->counts[i], memory_order_relaxed);
        print_name(out, metric, "_bucket", le);
        hps_buf_putf(out, "%" PRIu64 "\n", count);
    }
    print_name(out, metric, "_sum", NULL);
    hps_buf_putf(out, "%" PRIu64 ".%06" PRIu64 "\n", sum_us / 1000000, sum_us % 1000000);
    print_name(out, metric, "_count", NULL);
    hps_buf_putf(out, "%" PRIu64 "\n", count);
}

static void print_series(struct hps_buf *out, const struct hps_metric *metric)
{
    switch (metric->family->def.type) {
    case HPS_METRIC_COUNTER:
        print_name(out, metric, "", NULL);
        hps_buf_putf(out, "%" PRIu64 "\n",
                     atomic_load_explicit(&metric->value, memory_order_relaxed));
        break;
    case HPS_METRIC_GAUGE:
        print_name(out, metric, "", NULL);
        print_double(out, hps_metric_value(metric));
        hps_buf_putf(out, "\n");
        break;
    case HPS_METRIC_HISTOGRAM:
        print_histogram(out, metric);
        break;
    }
}

static void print_family(struct hps_buf *out, const struct family *family)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    bool head = false;
    for (const struct hps_metric *metric = family->first; metric != NULL; metric = metric->next) {
        if (!metric->printed) {
            continue;
        }
        if (!head) {
            print_head(out, "hpsd_", family->def.name, family->def.help, types[family->def.type]);
            head = true;
        }
        print_series(out, metric);
    }
}

static void print_single(struct hps_buf *out, const char *name, const char *type, const char *help,
                         double value)
{
    print_head(out, "", name, help, type);
    hps_buf_putf(out, "%s ", name);
    print_double(out, value);
    hps_buf_putf(out, "\n");
}

static void print_open_fds(struct hps_buf *out)
{
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL) {
        return;
    }
    unsigned n = 0;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        n += entry->d_name[0] != '.';
    }
    closedir(dir);
    print_single(out, "process_open_fds", "gauge", "Number of open file descriptors.",
                 (double)(n - 1)); /* without the descriptor that reads the directory */
}

static void print_process(struct hps_buf *out, double start_seconds)
{
    struct process_stat stat;
    if (process_stat_read(&stat)) {
        print_single(out, "process_cpu_seconds_total", "counter",
                     "Total user and system CPU time spent in seconds.",
                     (double)stat.cpu_ticks / (double)sysconf(_SC_CLK_TCK));
        print_single(out, "process_resident_memory_bytes", "gauge",
                     "Resident memory size in bytes.",
                     (double)stat.resident_pages * (double)sysconf(_SC_PAGESIZE));
        print_single(out, "process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.",
                     (double)stat.virtual_bytes);
    }
    print_open_fds(out);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        double max = limit.rlim_cur == RLIM_INFINITY ? INFINITY : (double)limit.rlim_cur;
        print_single(out, "process_max_fds", "gauge", "Maximum number of open file descriptors.",
                     max);
    }
    print_single(out, "process_start_time_seconds", "gauge",
                 "Start time of the process since unix epoch in seconds.", start_seconds);
}

hps_status hps_metrics_print(struct hps_metrics *metrics, struct hps_buf *out)
{
    struct hook hooks[HOOKS_MAX];
    hps_lock_acquire(&metrics->lock);
    unsigned n_hooks = metrics->n_hooks;
    memcpy(hooks, metrics->hooks, sizeof(hooks));
    hps_lock_release(&metrics->lock);
    for (unsigned i = 0; i < n_hooks; i++) {
        hooks[i].fn(hooks[i].ctx); /* without the lock: hooks may call hps_metric_get */
    }
    size_t size_before = out->size;
    hps_lock_acquire(&metrics->lock);
    for (unsigned i = 0; i < metrics->n_families; i++) {
        print_family(out, &metrics->families[i]);
    }
    uint64_t n_dropped = metrics->n_unprinted + metrics->n_no_memory;
    hps_lock_release(&metrics->lock);
    print_single(out, "hpsd_metrics_series_dropped", "gauge",
                 "Series that /metrics lacks: tables beyond the limit, and series that could not "
                 "be allocated.",
                 (double)n_dropped);
    print_process(out, metrics->start_seconds);
    if (out->status != HPS_OK) {
        out->size = size_before;
    }
    return out->status;
}
