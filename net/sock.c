/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets for servers and clients. Any thread.
 */
#include "net/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59 /* since Linux 4.13; the headers of the C library may be older */
#endif

#define LISTEN_BACKLOG     1024
#define INHERITED_FD_FIRST 3
#define UNIX_BUFFER_BYTES \
    (1 << 20) /* the default, 208 KiB, costs a third of the throughput of large replies */

static hps_status errno_status(int error)
{
    switch (error) {
    case EADDRINUSE:
        return HPS_BUSY;
    case EACCES:
    case EPERM:
        return HPS_PERMISSION;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
        return HPS_EXHAUSTED;
    default:
        return HPS_UNAVAILABLE;
    }
}

static hps_status fail(struct hps_error *err, const char *verb, const struct hps_addr *addr,
                       int error)
{
    char text[HPS_ADDR_TEXT_MAX];
    return hps_error_set(err, errno_status(error), "cannot %s %s: %s", verb,
                         hps_addr_print(addr, text, sizeof(text)), strerror(error));
}

/* ---- listening ------------------------------------------------------------------------------- */

/* Whether no server answers on this socket file. Only "connection refused" proves that. */
static bool unix_is_stale(const struct sockaddr *sockaddr, socklen_t size)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return false;
    }
    bool stale = connect(fd, sockaddr, size) != 0 && errno == ECONNREFUSED;
    close(fd);
    return stale;
}

static int bind_unix(int fd, const struct sockaddr *sockaddr, socklen_t size, const char *path,
                     mode_t mode)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) && unix_is_stale(sockaddr, size)) {
        unlink(path);
    }
    /* The file gets the permissions that the descriptor has before bind(): it is never more open
     * than `mode`. */
    if (fchmod(fd, mode) != 0 || bind(fd, sockaddr, size) != 0) {
        return -1;
    }
    return chmod(path, mode);
}

hps_status hps_sock_listen(const struct hps_addr *addr, mode_t mode, int *out_fd,
                           struct hps_error *err)
{
    struct hps_places places;
    hps_status status = hps_addr_resolve(addr, true, &places, err);
    if (status != HPS_OK) {
        return status;
    }
    const struct sockaddr *sockaddr = (const struct sockaddr *)&places.items[0].storage;
    socklen_t size = places.items[0].size;
    int fd = socket(sockaddr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return fail(err, "listen on", addr, errno);
    }
    int one = 1;
    int rc;
    if (addr->is_unix) {
        rc = bind_unix(fd, sockaddr, size, addr->path, mode);
    } else {
        /* No SO_REUSEPORT: with it a forgotten server would take half of the connections. */
        rc = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (rc == 0 && sockaddr->sa_family == AF_INET6) {
            rc = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
        }
        rc = rc == 0 ? bind(fd, sockaddr, size) : rc;
    }
    if (rc != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        int error = errno;
        close(fd);
        return fail(err, "listen on", addr, error);
    }
    *out_fd = fd;
    return HPS_OK;
}

hps_status hps_sock_local(int fd, struct hps_addr *out_addr)
{
    struct sockaddr_storage sockaddr = {0};
    socklen_t size = sizeof(sockaddr);
    if (getsockname(fd, (struct sockaddr *)&sockaddr, &size) != 0) {
        return HPS_IO;
    }
    if (sockaddr.ss_family == AF_UNIX) {
        struct hps_addr addr = {.is_unix = true};
        memcpy(addr.path, ((struct sockaddr_un *)&sockaddr)->sun_path, sizeof(addr.path));
        addr.path[sizeof(addr.path) - 1] = '\0';
        *out_addr = addr;
        return HPS_OK;
    }
    char text[HPS_ADDR_TEXT_MAX];
    hps_addr_print_sockaddr((struct sockaddr *)&sockaddr, size, text, sizeof(text));
    return hps_addr_parse(text, out_addr, NULL);
}

/* ---- connecting ------------------------------------------------------------------------------ */

static int connect_one(const struct hps_sockaddr *sockaddr, int *out_fd)
{
    int fd = socket(sockaddr->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return errno;
    }
    hps_sock_tune(fd);
    if (connect(fd, (const struct sockaddr *)&sockaddr->storage, sockaddr->size) != 0 &&
        errno != EINPROGRESS) {
        int error = errno;
        close(fd);
        return error;
    }
    *out_fd = fd;
    return 0;
}

hps_status hps_sock_connect_next(const struct hps_addr *addr, struct hps_places *places,
                                 int *out_fd, struct hps_error *err)
{
    HPS_ASSERT(places->n > 0 && places->n_tried <= places->n);
    int error = ECONNREFUSED;
    while (places->n_tried < places->n) {
        uint32_t i = (places->first % places->n + places->n_tried++) % places->n;
        error = connect_one(&places->items[i], out_fd);
        if (error == 0) {
            return HPS_OK;
        }
    }
    return fail(err, "connect to", addr, error);
}

hps_status hps_sock_connect(const struct hps_addr *addr, int *out_fd, struct hps_error *err)
{
    struct hps_places places;
    hps_status status = hps_addr_resolve(addr, false, &places, err);
    return status == HPS_OK ? hps_sock_connect_next(addr, &places, out_fd, err) : status;
}

hps_status hps_sock_connected(int fd, struct hps_error *err)
{
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        error = errno;
    }
    if (error != 0) {
        return hps_error_set(err, HPS_UNAVAILABLE, "%s", strerror(error));
    }
    struct sockaddr_storage peer;
    size = sizeof(peer);
    if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0) {
        return HPS_OK;
    }
    if (errno == ENOTCONN) {
        return HPS_AGAIN;
    }
    return hps_error_set(err, HPS_UNAVAILABLE, "%s", strerror(errno));
}

/* ---- accepted -------------------------------------------------------------------------------- */

hps_status hps_sock_accept(int listen_fd, int *out_fd)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return HPS_AGAIN;
        }
        return errno_status(errno) == HPS_EXHAUSTED ? HPS_EXHAUSTED : HPS_IO;
    }
    hps_sock_tune(fd);
    *out_fd = fd;
    return HPS_OK;
}

static void set_option(int fd, int level, int option, int value)
{
    /* Best effort: a socket without the option still works. */
    (void)!setsockopt(fd, level, option, &value, sizeof(value));
}

void hps_sock_tune(int fd)
{
    int domain = 0;
    socklen_t size = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) {
        return;
    }
    if (domain == AF_UNIX) {
        set_option(fd, SOL_SOCKET, SO_SNDBUF, UNIX_BUFFER_BYTES);
        return;
    }
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

bool hps_sock_peer_cred(int fd, struct hps_sock_cred *out_cred)
{
    struct ucred cred;
    socklen_t size = sizeof(cred);
    int domain = 0;
    socklen_t domain_size = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_size) != 0 || domain != AF_UNIX ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0) {
        return false;
    }
    *out_cred = (struct hps_sock_cred){.pid = cred.pid, .uid = cred.uid, .gid = cred.gid};
    return true;
}

hps_status hps_sock_peer_groups(int fd, gid_t **out_groups, size_t *out_n)
{
    struct hps_sock_cred cred;
    gid_t none = 0;
    socklen_t size = 0;
    if (!hps_sock_peer_cred(fd, &cred)) {
        return HPS_IO;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, &none, &size) != 0 && errno != ERANGE) {
        return HPS_IO;
    }
    gid_t *groups = hps_alloc(size + sizeof(*groups));
    if (!groups) {
        return HPS_NO_MEMORY;
    }
    groups[0] = cred.gid; /* the list of the kernel does not have it */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups + 1, &size) != 0) {
        hps_free(groups);
        return HPS_IO;
    }
    *out_groups = groups;
    *out_n = 1 + size / sizeof(*groups);
    return HPS_OK;
}

bool hps_sock_file_group(int fd, gid_t *out_group)
{
    struct hps_addr addr;
    struct stat st;
    if (hps_sock_local(fd, &addr) != HPS_OK || !addr.is_unix || addr.path[0] == '\0' ||
        lstat(addr.path, &st) != 0 || !S_ISSOCK(st.st_mode)) {
        return false;
    }
    *out_group = st.st_gid;
    return true;
}

bool hps_sock_peer_address(int fd, uint8_t out_address[16])
{
    struct sockaddr_storage ss = {0};
    socklen_t size = sizeof(ss);
    if (getpeername(fd, (struct sockaddr *)&ss, &size) != 0) {
        return false;
    }
    if (ss.ss_family == AF_INET6) {
        memcpy(out_address, &((struct sockaddr_in6 *)&ss)->sin6_addr, 16);
        return true;
    }
    if (ss.ss_family == AF_INET) {
        memset(out_address, 0, 10);
        memset(out_address + 10, 0xff, 2);
        memcpy(out_address + 12, &((struct sockaddr_in *)&ss)->sin_addr, 4);
        return true;
    }
    return false;
}

uint64_t hps_sock_client(int fd, bool *out_is_unix)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    uint64_t secret = hps_hash_secret();
    uint8_t address[16] = {0}; /* if the peer has disconnected */
    struct hps_sock_cred cred;
    *out_is_unix = hps_sock_peer_cred(fd, &cred);
    if (*out_is_unix) {
        return hps_hash_bytes(&cred.uid, sizeof(cred.uid), secret);
    }
    if (hps_sock_peer_address(fd, address) && memcmp(address, mapped, sizeof(mapped)) != 0) {
        memset(address + 8, 0, 8);
    }
    return hps_hash_bytes(address, sizeof(address), secret);
}

char *hps_sock_peer(int fd, char *text, size_t capacity)
{
    HPS_ASSERT(capacity > 0);
    struct hps_sock_cred cred;
    struct sockaddr_storage sockaddr;
    socklen_t size = sizeof(sockaddr);
    if (hps_sock_peer_cred(fd, &cred)) {
        snprintf(text, capacity, "unix:pid=%ld,uid=%lu,gid=%lu", (long)cred.pid,
                 (unsigned long)cred.uid, (unsigned long)cred.gid);
    } else if (getpeername(fd, (struct sockaddr *)&sockaddr, &size) == 0) {
        hps_addr_print_sockaddr((struct sockaddr *)&sockaddr, size, text, capacity);
    } else {
        snprintf(text, capacity, "?");
    }
    return text;
}

/* ---- inherited ------------------------------------------------------------------------------- */

static bool is_listening_stream(int fd)
{
    int value = 0;
    socklen_t size = sizeof(value);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &size) != 0 || value != SOCK_STREAM) {
        return false;
    }
    size = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value != 0;
}

static hps_status adopt(int fd, const char **names, struct hps_sock_inherited *socket,
                        struct hps_error *err)
{
    if (!is_listening_stream(fd)) {
        return hps_error_set(err, HPS_INVALID,
                             "LISTEN_FDS: descriptor %d is not a listening stream socket", fd);
    }
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        return hps_error_set(err, HPS_IO, "LISTEN_FDS: descriptor %d: %s", fd, strerror(errno));
    }
    *socket = (struct hps_sock_inherited){.fd = fd};
    if (*names) {
        size_t size = strcspn(*names, ":");
        size_t copy = size < sizeof(socket->name) ? size : sizeof(socket->name) - 1;
        memcpy(socket->name, *names, copy);
        *names = (*names)[size] == ':' ? *names + size + 1 : NULL;
    }
    return HPS_OK;
}

hps_status hps_sock_inherit(struct hps_sock_inherited *out_sockets, unsigned *out_n_sockets,
                            struct hps_error *err)
{
    const char *pid = getenv("LISTEN_PID");
    const char *fds = getenv("LISTEN_FDS");
    const char *names = getenv("LISTEN_FDNAMES");
    char *end = NULL;
    hps_status status = HPS_OK;
    unsigned n = 0;
    /* The variables may have been left by another process; then they are ignored. */
    if (pid && fds && strtol(pid, &end, 10) == (long)getpid() && *end == '\0') {
        unsigned long count = strtoul(fds, &end, 10);
        if (*fds == '\0' || *end != '\0' || count > HPS_SOCK_INHERITED_MAX) {
            status = hps_error_set(err, HPS_INVALID, "LISTEN_FDS: '%.40s' is not in 0 to %d", fds,
                                   HPS_SOCK_INHERITED_MAX);
            count = 0;
        }
        while (status == HPS_OK && n < count) {
            status = adopt(INHERITED_FD_FIRST + (int)n, &names, &out_sockets[n], err);
            n++;
        }
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (status == HPS_OK) {
        *out_n_sockets = n;
    }
    return status;
}
