/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS 1.2 and later on sockets, with ALPN "h2" unless it is to carry something else. Contexts are
 * shared by threads and reloadable; a session belongs to the thread of its connection. For HTTP,
 * net/conn.h is the way to use sessions.
 */
#ifndef HPS_NET_TLS_H
#define HPS_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct hps_tls;
struct hps_tls_session;

/* What whoever set the fields of the options calls them: errors begin with that. */
struct hps_tls_names {
    const char *cert_file, *key_file, *ca_file, *crl_file, *ciphers, *ciphersuites;
};

struct hps_tls_options {
    bool server;
    const struct hps_tls_names *names; /* NULL: "TLS certificate", "TLS key" and so on */
    const char *cert_file;             /* PEM chain, own certificate first; client: NULL for none */
    const char *key_file;              /* PEM; NULL: in cert_file */
    /* Server: CAs of clients, which then must show a certificate (mTLS), each time: no session is
     * resumed; NULL: none is asked for.
     * Client: CAs of servers; NULL: the system's. */
    const char *ca_file; /* a client's may be a directory of them, named as OpenSSL does */
    /* Certificates that their CAs have revoked, PEM; NULL: nobody asks. With it each CA of a chain
     * needs a list that is not out of date, else its certificates are refused. */
    const char *crl_file;
    bool peer_optional; /* server: a client without a certificate is let in all the same */
    bool tls13_only;
    /* OpenSSL's words for what TLS 1.2 and 1.3 may use; NULL: OpenSSL's own choice. */
    const char *ciphers;
    const char *ciphersuites;
    /* Client: name or address the server's certificate must carry; NULL: the host connected to,
     * which hps_tls_session_new gets. */
    const char *server_name;
    bool any_protocol; /* client: no HTTP/2; no ALPN is offered or expected */
    bool http1;        /* server: HTTP/1.1 instead, of clients that name no protocol, too */
};

/* Reads the files now. INVALID or IO naming what is wrong by its name among `names`, the file and
 * OpenSSL's reason; also a key of another certificate, ciphers of which there is none. From the
 * first one on, SIGPIPE is ignored in this process (OpenSSL writes to sockets without
 * MSG_NOSIGNAL). */
hps_status hps_tls_new(const struct hps_tls_options *options, struct hps_tls **out_tls,
                       struct hps_error *err) HPS_MUST_CHECK;
struct hps_tls *hps_tls_ref(struct hps_tls *tls); /* any thread */
void hps_tls_unref(struct hps_tls *tls);          /* any thread; NULL is legal */
/* Sessions that begin from now on are as those of `fresh`, which is taken: made by hps_tls_new from
 * newer files, and nobody else's. Any thread. */
void hps_tls_renew(struct hps_tls *tls, struct hps_tls *fresh);

/* One end of a stream over `fd` (borrowed, non-blocking). `host`: see server_name; ignored by
 * servers. */
hps_status hps_tls_session_new(struct hps_tls *tls, int fd, const char *host,
                               struct hps_tls_session **out_session, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_tls_session_free(struct hps_tls_session *session); /* NULL is legal */

/* What a call that returned AGAIN waits for on the socket. */
enum hps_tls_wait { HPS_TLS_WAIT_READ, HPS_TLS_WAIT_WRITE };

hps_status hps_tls_session_handshake(struct hps_tls_session *session, enum hps_tls_wait *out_wait,
                                     struct hps_error *err) HPS_MUST_CHECK;
/* As hps_conn_read. */
hps_status hps_tls_session_read(struct hps_tls_session *session, void *data, size_t capacity,
                                size_t *out_size, enum hps_tls_wait *out_wait) HPS_MUST_CHECK;
/* One record. After AGAIN call again with the same bytes (they may have moved, none may be
 * missing). */
hps_status hps_tls_session_write(struct hps_tls_session *session, const void *data, size_t size,
                                 size_t *out_size, enum hps_tls_wait *out_wait) HPS_MUST_CHECK;
void hps_tls_session_shutdown(struct hps_tls_session *session); /* close_notify, best effort */
/* Decrypted bytes that wait for hps_tls_session_read while the socket may be silent. */
bool hps_tls_session_pending(const struct hps_tls_session *session);
bool hps_tls_session_heard(const struct hps_tls_session *session);       /* any byte of the peer */
/* The i-th name in the verified certificate of the peer, NULL behind the last and where there is no
 * certificate: its URIs as they are and its DNS names in lower case, 64 at most; one that has
 * neither has its subject, in the form of RFC 2253 ("CN=trainer,O=ads"). No name of one kind can
 * look like one of another: URIs begin with a scheme, DNS names have neither ':' nor '=', subjects
 * have '=' before any ':'. Names with other characters are left out. */
const char *hps_tls_session_name(const struct hps_tls_session *session, unsigned i);
/* Whether the peer's certificate is still good by the files that new sessions use (CA, CRL); where
 * none was shown, whether new sessions may do without. UNAUTHENTICATED: the reason is in `err`. */
hps_status hps_tls_session_recheck(struct hps_tls_session *session, struct hps_error *err)
    HPS_MUST_CHECK;

/* SHA-256 of `size` bytes. Any thread. */
hps_status hps_tls_sha256(const void *data, size_t size, unsigned char out_digest[32])
    HPS_MUST_CHECK;

#endif
