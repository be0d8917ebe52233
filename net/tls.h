/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS 1.2 and later on sockets, with ALPN "h2" unless an option says otherwise. Threads share
 * contexts, which can be reloaded. A session belongs to the thread of its connection. HTTP uses
 * sessions through net/conn.h.
 */
#ifndef HPS_NET_TLS_H
#define HPS_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct hps_tls;
struct hps_tls_session;

/* The caller's names for the options; error texts begin with them. */
struct hps_tls_names {
    const char *cert_file, *key_file, *ca_file, *crl_file, *ciphers, *ciphersuites;
};

struct hps_tls_options {
    bool server;
    const struct hps_tls_names *names; /* NULL: "TLS certificate", "TLS key" and so on */
    const char *cert_file;             /* PEM chain, own certificate first; client: may be NULL */
    const char *key_file;              /* PEM; NULL: the key is in cert_file */
    /* Server: CAs of client certificates, which clients must then present (mTLS) unless
     * peer_optional is set. Sessions are then not resumed, so that every connection is checked.
     * NULL: no certificate is requested. Client: CAs of servers; NULL: the system's CAs. */
    const char *ca_file; /* client: may be a directory with OpenSSL's file names */
    /* Certificates that their CAs have revoked, PEM; NULL: not checked. If set, each CA of a chain
     * needs a list that is still valid. Otherwise its certificates are rejected. */
    const char *crl_file;
    bool peer_optional; /* server: accept clients without a certificate */
    bool tls13_only;
    /* Allowed ciphers of TLS 1.2 and ciphersuites of TLS 1.3, in OpenSSL's syntax; NULL: OpenSSL's
     * default. */
    const char *ciphers;
    const char *ciphersuites;
    /* Client: name or address that the server's certificate must have. NULL: `host` of
     * hps_tls_session_new. */
    const char *server_name;
    bool any_protocol; /* client: no ALPN is offered or expected */
    bool http1;        /* server: HTTP/1.1 instead of HTTP/2; clients may omit ALPN */
};

/* Reads the files now. The first call makes the process ignore SIGPIPE, unless it has a handler:
 * OpenSSL writes to sockets without MSG_NOSIGNAL.
 *
 * error   INVALID, IO: a file is missing or malformed, the key is that of another certificate, or a
 *         cipher is not known; `err` has the option's name, the file and OpenSSL's reason.
 *         NO_MEMORY
 */
hps_status hps_tls_new(const struct hps_tls_options *options, struct hps_tls **out_tls,
                       struct hps_error *err) HPS_MUST_CHECK;
struct hps_tls *hps_tls_ref(struct hps_tls *tls); /* any thread */
void hps_tls_unref(struct hps_tls *tls);          /* any thread; NULL has no effect */
/* Sessions that begin from now on use the files of `fresh`, which is taken. Nothing else may refer
 * to `fresh`. Any thread. */
void hps_tls_renew(struct hps_tls *tls, struct hps_tls *fresh);

/* One end of a stream over `fd` (borrowed, non-blocking). `host`: see server_name; servers ignore
 * it. The session uses the files that `tls` has now. */
hps_status hps_tls_session_new(struct hps_tls *tls, int fd, const char *host,
                               struct hps_tls_session **out_session, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_tls_session_free(struct hps_tls_session *session); /* NULL has no effect */

/* The socket event that a call waits for when it returns AGAIN. */
enum hps_tls_wait { HPS_TLS_WAIT_READ, HPS_TLS_WAIT_WRITE };

hps_status hps_tls_session_handshake(struct hps_tls_session *session, enum hps_tls_wait *out_wait,
                                     struct hps_error *err) HPS_MUST_CHECK;
/* As hps_conn_read. */
hps_status hps_tls_session_read(struct hps_tls_session *session, void *data, size_t capacity,
                                size_t *out_size, enum hps_tls_wait *out_wait) HPS_MUST_CHECK;
/* Writes one record. After AGAIN call again with the same bytes, which may be at another
 * address. */
hps_status hps_tls_session_write(struct hps_tls_session *session, const void *data, size_t size,
                                 size_t *out_size, enum hps_tls_wait *out_wait) HPS_MUST_CHECK;
void hps_tls_session_shutdown(struct hps_tls_session *session); /* close_notify, best effort */
/* Whether decrypted bytes are left for hps_tls_session_read. The socket may then be silent. */
bool hps_tls_session_pending(const struct hps_tls_session *session);
bool hps_tls_session_heard(const struct hps_tls_session *session); /* a byte of the peer came */
/* The i-th name of the peer's verified certificate; NULL past the last one and without a
 * certificate. The names are its URIs as they are and its DNS names in lower case, at most 64. A
 * certificate with neither has one name: its subject in the form of RFC 2253 ("CN=trainer,O=ads").
 * Names of different kinds cannot be equal: URIs begin with a scheme, DNS names have no ':' and no
 * '=', and subjects have '=' before any ':'. Names with other characters and names of 256 bytes and
 * more are left out. */
const char *hps_tls_session_name(const struct hps_tls_session *session, unsigned i);
/* Whether the peer's certificate is valid by the files that new sessions use (CA, CRL). If the peer
 * presented none: whether new sessions may do without. UNAUTHENTICATED: `err` has the reason. */
hps_status hps_tls_session_recheck(struct hps_tls_session *session, struct hps_error *err)
    HPS_MUST_CHECK;

/* SHA-256 of `size` bytes. Any thread. */
hps_status hps_tls_sha256(const void *data, size_t size, unsigned char out_digest[32])
    HPS_MUST_CHECK;

#endif
