/* SPDX-License-Identifier: Apache-2.0
 *
 * Event loop over libevent's epoll. libevent waits for descriptors. Timers and deferrals are our
 * own code, so that arming one cannot fail and tests can drive them with the fake clock. Runs on
 * the thread that calls hps_loop_run.
 */
#include "net/loop.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

_Static_assert(sizeof(struct event) <= HPS_LOOP_EVENT_BYTES, "raise HPS_LOOP_EVENT_BYTES");
_Static_assert(_Alignof(struct event) <= 16, "struct hps_loop_fd aligns its events to 16");

#define WAIT_US_MAX 60000000u

enum {
    STEP_US = 1000, /* that posted tasks, and timers, have of a turn */
    UNSEEN_MAX = 8, /* of them between two looks at the clock */
};

struct hps_loop {
    struct event_base *base;
    struct event *wait_event; /* wakes the wait for the next timer */
    struct hps_mailbox *mailbox;
    struct hps_loop_fd mailbox_fd;
    struct hps_task *tasks;   /* taken from the mailbox, not yet run */
    struct hps_timer *timers; /* root of the pairing heap */
    uint64_t timer_order;     /* equal times fire in order of arming */
    TAILQ_HEAD(, hps_loop_later) later;
    struct hps_run work;
    uint64_t now_us;
    struct hps_task stop_task;
    atomic_bool stopping;
    atomic_bool running;
    bool in_turn;
    pthread_t owner; /* valid while running */
};

static pthread_once_t library_once = PTHREAD_ONCE_INIT;

/* ---- libevent, once per process -------------------------------------------------------------- */

static void library_log(int severity, const char *msg)
{
    if (severity >= EVENT_LOG_WARN) {
        HPS_LOG(WARN, "loop", "event loop degraded: libevent reports an error",
                HPS_STR("reason", msg));
    }
}

static void library_fatal(int code)
{
    (void)code;
    hps_assert_failed("libevent is in order", __FILE__, __LINE__);
}

static void library_setup(void)
{
    event_set_mem_functions(hps_alloc, hps_realloc, hps_free);
    event_set_log_callback(library_log);
    event_set_fatal_callback(library_fatal);
}

/* ---- timers: a pairing heap ------------------------------------------------------------------ */

static bool timer_before(const struct hps_timer *a, const struct hps_timer *b)
{
    return a->at_us < b->at_us || (a->at_us == b->at_us && a->order < b->order);
}

/* Joins two heaps; either may be NULL. The roots have neither next nor prev. */
static struct hps_timer *timer_meld(struct hps_timer *a, struct hps_timer *b)
{
    if (!a || !b) {
        return a ? a : b;
    }
    if (timer_before(b, a)) {
        struct hps_timer *swap = a;
        a = b;
        b = swap;
    }
    b->next = a->child;
    b->prev = a;
    if (a->child) {
        a->child->prev = b;
    }
    a->child = b;
    return a;
}

/* Makes one heap of a list of siblings: pair from left to right, then join from right to left. */
static struct hps_timer *timer_meld_siblings(struct hps_timer *first)
{
    struct hps_timer *pairs = NULL;
    while (first) {
        struct hps_timer *a = first;
        struct hps_timer *b = a->next;
        first = b ? b->next : NULL;
        a->next = a->prev = NULL;
        if (b) {
            b->next = b->prev = NULL;
        }
        struct hps_timer *pair = timer_meld(a, b);
        pair->next = pairs;
        pairs = pair;
    }
    struct hps_timer *root = NULL;
    while (pairs) {
        struct hps_timer *pair = pairs;
        pairs = pair->next;
        pair->next = NULL;
        root = timer_meld(root, pair);
    }
    return root;
}

void hps_timer_init(struct hps_timer *timer, hps_timer_fn fn, void *ctx)
{
    HPS_ASSERT(fn);
    *timer = (struct hps_timer){.fn = fn, .ctx = ctx};
}

void hps_timer_stop(struct hps_timer *timer)
{
    struct hps_loop *loop = timer->loop;
    if (!loop) {
        return;
    }
    HPS_ASSERT(hps_loop_is_mine(loop));
    struct hps_timer *rest = timer_meld_siblings(timer->child);
    timer->child = NULL;
    if (timer == loop->timers) {
        loop->timers = rest;
    } else {
        if (timer->prev->child == timer) {
            timer->prev->child = timer->next;
        } else {
            timer->prev->next = timer->next;
        }
        if (timer->next) {
            timer->next->prev = timer->prev;
        }
        timer->next = timer->prev = NULL;
        loop->timers = timer_meld(loop->timers, rest);
    }
    timer->loop = NULL;
}

void hps_timer_set(struct hps_loop *loop, struct hps_timer *timer, uint64_t at_us)
{
    HPS_ASSERT(hps_loop_is_mine(loop));
    HPS_ASSERT(timer->fn);
    hps_timer_stop(timer);
    timer->loop = loop;
    timer->at_us = at_us;
    timer->order = loop->timer_order++;
    loop->timers = timer_meld(loop->timers, timer);
}

void hps_timer_set_after(struct hps_loop *loop, struct hps_timer *timer, uint64_t delay_us)
{
    uint64_t now_us = hps_loop_now_us(loop);
    hps_timer_set(loop, timer, delay_us > UINT64_MAX - now_us ? UINT64_MAX : now_us + delay_us);
}

bool hps_timer_armed(const struct hps_timer *timer)
{
    return timer->loop != NULL;
}

/* Whether a step that began at loop->now_us has had its time, after n callbacks. */
static bool is_over(const struct hps_loop *loop, unsigned n)
{
    return n % UNSEEN_MAX == 0 && hps_clock_us() - loop->now_us > STEP_US;
}

/* Fires the due timers. A timer that its callback sets again gets a higher order, so it waits for
 * the next turn. */
static void run_timers(struct hps_loop *loop)
{
    uint64_t order_end = loop->timer_order;
    unsigned n = 0;
    while (loop->timers && loop->timers->at_us <= loop->now_us && loop->timers->order < order_end &&
           !is_over(loop, ++n)) {
        struct hps_timer *timer = loop->timers;
        hps_timer_stop(timer);
        timer->fn(timer->ctx);
    }
}

/* ---- later this turn ------------------------------------------------------------------------- */

void hps_loop_later_init(struct hps_loop_later *later, void (*fn)(void *ctx), void *ctx)
{
    HPS_ASSERT(fn);
    *later = (struct hps_loop_later){.fn = fn, .ctx = ctx};
}

void hps_loop_later_set(struct hps_loop *loop, struct hps_loop_later *later)
{
    HPS_ASSERT(hps_loop_is_mine(loop));
    HPS_ASSERT(later->fn);
    if (later->loop) {
        HPS_ASSERT(later->loop == loop);
        return;
    }
    later->loop = loop;
    TAILQ_INSERT_TAIL(&loop->later, later, link);
}

void hps_loop_later_stop(struct hps_loop_later *later)
{
    struct hps_loop *loop = later->loop;
    if (!loop) {
        return;
    }
    HPS_ASSERT(hps_loop_is_mine(loop));
    TAILQ_REMOVE(&loop->later, later, link);
    later->loop = NULL;
}

bool hps_loop_later_is_set(const struct hps_loop_later *later)
{
    return later->loop != NULL;
}

static void run_mark(void *ctx)
{
    (void)ctx; /* removed before it could run */
}

/* Runs the entries that are queued now. A mark behind them makes entries that callbacks add wait
 * for the next turn. Callbacks may remove any entry. */
static void run_later(struct hps_loop *loop)
{
    if (TAILQ_EMPTY(&loop->later)) {
        return;
    }
    struct hps_loop_later mark;
    hps_loop_later_init(&mark, run_mark, NULL);
    hps_loop_later_set(loop, &mark);
    while (TAILQ_FIRST(&loop->later) != &mark) {
        struct hps_loop_later *later = TAILQ_FIRST(&loop->later);
        hps_loop_later_stop(later);
        later->fn(later->ctx);
    }
    hps_loop_later_stop(&mark);
}

/* ---- posted tasks ---------------------------------------------------------------------------- */

/* Tasks that are left from the turn before come first. */
static void take_tasks(struct hps_loop *loop)
{
    if (!loop->tasks) {
        loop->tasks = hps_mailbox_take_all(loop->mailbox);
    }
}

static void run_tasks(struct hps_loop *loop)
{
    unsigned n = 0;
    while (loop->tasks && !is_over(loop, ++n)) {
        struct hps_task *task = loop->tasks;
        loop->tasks = task->next;
        task->next = NULL;
        if (task->client != 0) {
            hps_run_post(&loop->work, task);
        } else {
            task->run(task);
        }
    }
}

static void on_mailbox(void *ctx, unsigned events)
{
    (void)events;
    take_tasks(ctx);
}

void hps_loop_post_for(struct hps_loop *loop, struct hps_task *task, uint64_t client)
{
    HPS_ASSERT(task->run);
    task->client = client;
    hps_mailbox_post(loop->mailbox, task);
}

void hps_loop_post(struct hps_loop *loop, struct hps_task *task)
{
    hps_loop_post_for(loop, task, 0);
}

static void on_wait_over(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    (void)ctx;
}

static void stop_run(struct hps_task *task)
{
    (void)task; /* the task only wakes the loop */
}

void hps_loop_stop(struct hps_loop *loop)
{
    if (!atomic_exchange(&loop->stopping, true)) {
        hps_loop_post(loop, &loop->stop_task);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Whether the next turn has something to do, even if nothing happens meanwhile. */
static bool has_more(const struct hps_loop *loop)
{
    return !TAILQ_EMPTY(&loop->later) || loop->tasks || !hps_run_is_idle(&loop->work);
}

hps_status hps_loop_new(struct hps_loop **out_loop, struct hps_error *err)
{
    pthread_once(&library_once, library_setup);
    HPS_ASSERT(event_get_struct_event_size() <= HPS_LOOP_EVENT_BYTES);
    struct hps_loop *loop = hps_calloc(1, sizeof(*loop));
    if (!loop) {
        return hps_error_set(err, HPS_NO_MEMORY, "event loop: out of memory");
    }
    loop->stop_task.run = stop_run;
    TAILQ_INIT(&loop->later);
    hps_run_init(&loop->work);
    loop->now_us = hps_clock_us();
    struct event_config *config = event_config_new();
    if (config && event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK) == 0) {
        loop->base = event_base_new_with_config(config);
    }
    if (config) {
        event_config_free(config);
    }
    loop->wait_event = loop->base ? event_new(loop->base, -1, 0, on_wait_over, NULL) : NULL;
    loop->mailbox = loop->wait_event ? hps_mailbox_new() : NULL;
    if (!loop->mailbox) {
        goto fail;
    }
    if (hps_loop_fd_add(loop, &loop->mailbox_fd, hps_mailbox_fd(loop->mailbox), HPS_LOOP_READ,
                        on_mailbox, loop) != HPS_OK) {
        goto fail;
    }
    *out_loop = loop;
    return HPS_OK;

fail:
    if (loop->mailbox) {
        hps_mailbox_free(loop->mailbox);
    }
    if (loop->wait_event) {
        event_free(loop->wait_event);
    }
    if (loop->base) {
        event_base_free(loop->base);
    }
    hps_free(loop);
    return hps_error_set(err, HPS_EXHAUSTED, "event loop: out of memory or file descriptors");
}

void hps_loop_free(struct hps_loop *loop)
{
    if (!loop) {
        return;
    }
    HPS_ASSERT(!atomic_load(&loop->running));
    do {
        loop->now_us = hps_clock_us();
        run_tasks(loop);
        run_later(loop);
        hps_run_turn(&loop->work);
        take_tasks(loop);
    } while (has_more(loop));
    HPS_ASSERT(!loop->timers);
    hps_loop_fd_del(&loop->mailbox_fd);
    hps_mailbox_free(loop->mailbox);
    event_free(loop->wait_event);
    event_base_free(loop->base);
    hps_free(loop);
}

bool hps_loop_is_mine(const struct hps_loop *loop)
{
    return !atomic_load_explicit(&loop->running, memory_order_acquire) ||
           pthread_equal(loop->owner, pthread_self());
}

uint64_t hps_loop_now_us(const struct hps_loop *loop)
{
    return loop->in_turn ? loop->now_us : hps_clock_us();
}

struct hps_run *hps_loop_work(struct hps_loop *loop)
{
    return &loop->work;
}

static uint64_t wait_us(const struct hps_loop *loop, uint64_t timeout_us)
{
    if (has_more(loop)) {
        return 0;
    }
    uint64_t wait = timeout_us < WAIT_US_MAX ? timeout_us : WAIT_US_MAX;
    if (loop->timers) {
        uint64_t now_us = hps_clock_us();
        uint64_t at_us = loop->timers->at_us;
        uint64_t until = at_us > now_us ? at_us - now_us : 0;
        wait = until < wait ? until : wait;
    }
    return wait;
}

static void turn(struct hps_loop *loop, uint64_t timeout_us)
{
    uint64_t wait = wait_us(loop, timeout_us);
    int flags = EVLOOP_ONCE | EVLOOP_NONBLOCK; /* NONBLOCK alone repeats while any is ready */
    event_del(loop->wait_event);
    if (wait > 0) {
        struct timeval tv = {.tv_sec = (time_t)(wait / 1000000),
                             .tv_usec = (suseconds_t)(wait % 1000000)};
        flags = event_add(loop->wait_event, &tv) == 0 ? EVLOOP_ONCE : flags;
    }
    loop->in_turn =
        false; /* callbacks of descriptors read the clock until the first one has set it */
    event_base_loop(loop->base, flags);
    loop->now_us = hps_clock_us();
    loop->in_turn = true;
    run_tasks(loop);
    run_timers(loop);
    run_later(loop);
    hps_run_turn(&loop->work);
    loop->in_turn = false;
}

static void own(struct hps_loop *loop)
{
    HPS_ASSERT(!atomic_load(&loop->running));
    loop->owner = pthread_self();
    atomic_store_explicit(&loop->running, true, memory_order_release);
}

static void disown(struct hps_loop *loop)
{
    atomic_store_explicit(&loop->running, false, memory_order_release);
}

void hps_loop_run(struct hps_loop *loop)
{
    own(loop);
    while (!atomic_load(&loop->stopping)) {
        turn(loop, WAIT_US_MAX);
    }
    disown(loop);
}

void hps_loop_turn(struct hps_loop *loop, uint64_t timeout_us)
{
    own(loop);
    turn(loop, timeout_us);
    disown(loop);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static struct event *event_of(unsigned char *bytes)
{
    return (struct event *)(void *)bytes;
}

/* The first callback of a turn reads the clock for all of them. */
static void wake(struct hps_loop *loop)
{
    if (!loop->in_turn) {
        loop->now_us = hps_clock_us();
        loop->in_turn = true;
    }
}

static void on_event(evutil_socket_t fd, short what, void *arg)
{
    struct hps_loop_fd *handle = arg;
    (void)fd;
    wake(handle->loop);
    handle->fn(handle->ctx, (what & EV_WRITE) ? HPS_LOOP_WRITE : HPS_LOOP_READ);
}

hps_status hps_loop_fd_add(struct hps_loop *loop, struct hps_loop_fd *handle, int fd,
                           unsigned events, hps_loop_fd_fn fn, void *ctx)
{
    HPS_ASSERT(hps_loop_is_mine(loop));
    HPS_ASSERT(fn && fd >= 0);
    *handle = (struct hps_loop_fd){.loop = loop, .fn = fn, .ctx = ctx, .fd = fd};
    if (event_assign(event_of(handle->read_event), loop->base, fd, EV_READ | EV_PERSIST, on_event,
                     handle) != 0 ||
        event_assign(event_of(handle->write_event), loop->base, fd, EV_WRITE | EV_PERSIST, on_event,
                     handle) != 0) {
        handle->loop = NULL;
        return HPS_INVALID;
    }
    hps_status status = hps_loop_fd_want(handle, events);
    if (status != HPS_OK) {
        hps_loop_fd_del(handle);
    }
    return status;
}

static hps_status event_want(struct event *event, bool want)
{
    errno = 0;
    if ((want ? event_add(event, NULL) : event_del(event)) == 0) {
        return HPS_OK;
    }
    return errno == 0 || errno == ENOMEM ? HPS_NO_MEMORY : HPS_INVALID;
}

hps_status hps_loop_fd_want(struct hps_loop_fd *handle, unsigned events)
{
    HPS_ASSERT(handle->loop && hps_loop_is_mine(handle->loop));
    HPS_ASSERT((events & ~(unsigned)(HPS_LOOP_READ | HPS_LOOP_WRITE)) == 0);
    unsigned change = events ^ handle->events;
    if (change & HPS_LOOP_READ) {
        hps_status status = event_want(event_of(handle->read_event), events & HPS_LOOP_READ);
        if (status != HPS_OK) {
            return status;
        }
        handle->events ^= HPS_LOOP_READ;
    }
    if (change & HPS_LOOP_WRITE) {
        hps_status status = event_want(event_of(handle->write_event), events & HPS_LOOP_WRITE);
        if (status != HPS_OK) {
            return status;
        }
        handle->events ^= HPS_LOOP_WRITE;
    }
    return HPS_OK;
}

void hps_loop_fd_del(struct hps_loop_fd *handle)
{
    if (!handle->loop) {
        return;
    }
    HPS_ASSERT(hps_loop_is_mine(handle->loop));
    event_del(event_of(handle->read_event));
    event_del(event_of(handle->write_event));
    handle->events = 0;
    handle->loop = NULL;
}

/* ---- signals --------------------------------------------------------------------------------- */

struct hps_loop_signals {
    struct hps_loop_fd fd;
    void (*fn)(void *ctx, int signal_number);
    void *ctx;
};

static void on_signal(void *ctx, unsigned events)
{
    struct hps_loop_signals *signals = ctx;
    struct signalfd_siginfo info;
    (void)events;
    /* One signal a turn: the callback may free `signals`. */
    if (read(signals->fd.fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        signals->fn(signals->ctx, (int)info.ssi_signo);
    }
}

hps_status hps_loop_signals_new(struct hps_loop *loop, const int *signals, unsigned n_signals,
                                void (*fn)(void *ctx, int signal_number), void *ctx,
                                struct hps_loop_signals **out_signals, struct hps_error *err)
{
    HPS_ASSERT(fn && n_signals > 0);
    sigset_t set;
    sigemptyset(&set);
    for (unsigned i = 0; i < n_signals; i++) {
        if (sigaddset(&set, signals[i]) != 0) {
            return hps_error_set(err, HPS_INVALID, "signal %d: no such signal", signals[i]);
        }
    }
    struct hps_loop_signals *watch = hps_calloc(1, sizeof(*watch));
    if (!watch) {
        return hps_error_set(err, HPS_NO_MEMORY, "signals: out of memory");
    }
    watch->fn = fn;
    watch->ctx = ctx;
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) {
        hps_free(watch);
        return hps_error_set(err, HPS_EXHAUSTED, "signals: %s", strerror(errno));
    }
    hps_status status = hps_loop_fd_add(loop, &watch->fd, fd, HPS_LOOP_READ, on_signal, watch);
    if (status != HPS_OK) {
        close(fd);
        hps_free(watch);
        return hps_error_set(err, status, "signals: %s", hps_status_text(status));
    }
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    *out_signals = watch;
    return HPS_OK;
}

void hps_loop_signals_free(struct hps_loop_signals *signals)
{
    if (!signals) {
        return;
    }
    hps_loop_fd_del(&signals->fd);
    close(signals->fd.fd);
    hps_free(signals);
}
