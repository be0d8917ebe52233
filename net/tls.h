/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS 1.2 and later on sockets, with ALPN "h2" unless an option says otherwise. A context (struct
 * hps_tls) has the certificates; threads may share it, and its files can be reloaded. A session
 * (struct hps_tls_session) is one end of a connection and belongs to its thread. HTTP uses sessions
 * through net/conn.h.
 */
#ifndef HPS_NET_TLS_H
#define HPS_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct hps_tls;
struct hps_tls_session;

/* The names by which users know these options, for example of a configuration file. Error texts
 * begin with them. */
struct hps_tls_names {
    const char *cert_file, *key_file, *ca_file, *crl_file, *ciphers, *ciphersuites;
};

struct hps_tls_options {
    bool server;                       /* context of a server; else of a client */
    const struct hps_tls_names *names; /* NULL: "TLS certificate", "TLS key" and so on */
    const char *cert_file;             /* PEM chain, own certificate first; client: may be NULL */
    const char *key_file;              /* PEM; NULL: the key is in cert_file */
    /* Server: file with the CAs of client certificates (PEM). NULL: no certificate is requested.
     * With a file, clients must present a certificate (mTLS) unless peer_optional is set. Sessions
     * are then never resumed, with or without peer_optional, so that every connection is checked.
     *
     * Client: file with the CAs of servers, or a directory with OpenSSL's file names. NULL: the
     * system's CAs. */
    const char *ca_file;
    /* File with the revocation lists (CRLs) of the CAs, PEM. If it is set, each CA of a certificate
     * chain must have a list that is still valid, or the certificate is rejected. NULL: revocation
     * is not checked. */
    const char *crl_file;
    bool peer_optional; /* server: accept clients without a certificate */
    bool tls13_only;
    const char *ciphers;      /* allowed in TLS 1.2, OpenSSL's syntax; NULL: OpenSSL's default */
    const char *ciphersuites; /* allowed in TLS 1.3, OpenSSL's syntax; NULL: OpenSSL's default */
    /* Client: name or address that the server's certificate must have. NULL: the `host` that is
     * given to hps_tls_session_new. */
    const char *server_name;
    bool any_protocol; /* client: no ALPN is offered or expected */
    bool http1;        /* server: HTTP/1.1 instead of HTTP/2; clients may omit ALPN */
};

/* Creates a context and reads its files. The first call makes the process ignore SIGPIPE, unless
 * SIGPIPE has a handler, because OpenSSL writes to sockets without MSG_NOSIGNAL.
 *
 * error   INVALID, IO: a file is missing or malformed, the key does not belong to the certificate,
 *         or a cipher is unknown. `err` has the option's name, the file and OpenSSL's reason.
 *         NO_MEMORY
 * owner   *out_tls: a reference of the caller, hps_tls_unref
 */
hps_status hps_tls_new(const struct hps_tls_options *options, struct hps_tls **out_tls,
                       struct hps_error *err) HPS_MUST_CHECK;
struct hps_tls *hps_tls_ref(struct hps_tls *tls); /* any thread */
void hps_tls_unref(struct hps_tls *tls);          /* any thread; NULL has no effect */
/* Makes sessions that begin from now on use the files of `fresh`. Takes over the caller's reference
 * to `fresh`, which must be the only one. Any thread. */
void hps_tls_renew(struct hps_tls *tls, struct hps_tls *fresh);

/* Creates one end of a TLS stream over `fd` (borrowed, non-blocking). The session uses the files
 * that `tls` has now. `host`: the name that a client expects if server_name is NULL. Servers ignore
 * it. */
hps_status hps_tls_session_new(struct hps_tls *tls, int fd, const char *host,
                               struct hps_tls_session **out_session, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_tls_session_free(struct hps_tls_session *session); /* NULL has no effect */

/* The socket event that a call waits for when it returns AGAIN. */
enum hps_tls_wait { HPS_TLS_WAIT_READ, HPS_TLS_WAIT_WRITE };

/* Continues the handshake. OK: it is finished. AGAIN: wait for *out_wait and call again. Any other
 * status ends the session; `err` has the reason. */
hps_status hps_tls_session_handshake(struct hps_tls_session *session, enum hps_tls_wait *out_wait,
                                     struct hps_error *err) HPS_MUST_CHECK;
/* Returns the statuses of hps_conn_read. After AGAIN, *out_wait is the event to wait for. */
hps_status hps_tls_session_read(struct hps_tls_session *session, void *data, size_t capacity,
                                size_t *out_size, enum hps_tls_wait *out_wait) HPS_MUST_CHECK;
/* Writes one record. Returns the statuses of hps_conn_writev. After AGAIN, wait for *out_wait and
 * call again with the same bytes, which may be at another address. */
hps_status hps_tls_session_write(struct hps_tls_session *session, const void *data, size_t size,
                                 size_t *out_size, enum hps_tls_wait *out_wait) HPS_MUST_CHECK;
void hps_tls_session_shutdown(struct hps_tls_session *session); /* close_notify, best effort */
/* Whether decrypted bytes are left for hps_tls_session_read. The socket does not become readable
 * for them. */
bool hps_tls_session_pending(const struct hps_tls_session *session);
/* Whether the peer has sent at least one byte. */
bool hps_tls_session_received(const struct hps_tls_session *session);
/* The i-th name of the peer's verified certificate. NULL: `i` is past the last name, or the peer
 * has no certificate. The names are the URIs of the certificate, unchanged, and its DNS names in
 * lower case; at most 64 in all. A certificate with neither has one name: its subject in the form
 * of RFC 2253 ("CN=trainer,O=ads"). Names of different kinds cannot be equal: URIs begin with a
 * scheme, DNS names have no ':' and no '=', and subjects have '=' before any ':'. Names that do not
 * have this form, and names of 256 bytes or more, are left out. */
const char *hps_tls_session_name(const struct hps_tls_session *session, unsigned i);
/* Checks the peer of an open session with the CA and CRL files that new sessions use. OK: the
 * peer's certificate is valid with these files, or the peer presented none and none is required.
 * UNAUTHENTICATED: `err` has the reason. */
hps_status hps_tls_session_recheck(struct hps_tls_session *session, struct hps_error *err)
    HPS_MUST_CHECK;

/* Computes the SHA-256 digest of `size` bytes. Any thread. */
hps_status hps_tls_sha256(const void *data, size_t size, unsigned char out_digest[32])
    HPS_MUST_CHECK;

#endif
