/* All processes of a run, each joined to each other by two sockets: one for data, which the thread
 * that computes uses, and one on which a thread of its own says what this process does, hears what
 * the others do, and passes on who has failed. */
#ifndef CUP_COMM_MESH_H
#define CUP_COMM_MESH_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/text.h"
#include "comm/launched.h"

#define CUP__NAME_TEXT 96
#define CUP__NEWS_TEXT 640

typedef enum cup__operation_id {
    CUP__COMPUTING,
    CUP__AGREE,
    CUP__ALL_REDUCE,
    CUP__REDUCE_SCATTER,
    CUP__ALL_GATHER,
    CUP__BROADCAST,
    CUP__ALL_TO_ALL,
    CUP__REDUCE,
    CUP__SEND,
    CUP__ROTATE,
    CUP__OPERATIONS
} cup__operation_id;
extern const char *const cup__operation_names[CUP__OPERATIONS];

/* What a process does, or did last. */
typedef struct cup__doing {
    uint32_t id, group, busy;
    uint64_t sequence; /* number of the operation in its group, from 1 */
    int64_t step;
} cup__doing;

#define CUP__EVENTS 128

/* An operation of this process; times are of cup__clock, `ended` 0 until then. */
typedef struct cup__event {
    cup__doing doing;
    double begun, ended;
} cup__event;

typedef struct cup__flight {
    char *folder; /* where it is written when the run fails; NULL: nowhere */
    cup__event events[CUP__EVENTS]; /* number i is at i % CUP__EVENTS */
    uint64_t count;
} cup__flight;

typedef struct cup__peer {
    int data, control; /* -1: this process, or not there any more */
    char name[CUP__NAME_TEXT]; /* "rank 3 (process 17 on host)" */
    double heard;
    cup__doing doing;
    bool left; /* it said so */
} cup__peer;

/* What ends at once when the mesh fails: an operation of NCCL. */
typedef struct cup__rope {
    void (*pull)(void *user);
    bool (*broken)(void *user, char *why, size_t size); /* asked often; or NULL */
    void *user;
    bool pulled, held; /* `held` while it is pulled, which may take until graphs were freed */
    struct cup__rope *next;
} cup__rope;

typedef struct cup__mesh {
    int rank, count, refs;
    double timeout, silence;
    cup__peer *peers; /* [count] */
    pthread_mutex_t lock; /* of all below, and of what the thread hears of the peers */
    pthread_cond_t let_go; /* of a rope */
    pthread_t thread;
    bool running;
    int wake[2];     /* a byte in it ends the thread's wait */
    bool ending;
    cup__doing mine;
    cup__flight flight;
    cup__rope *ropes;
    _Atomic bool failed;
    char news[CUP__NEWS_TEXT]; /* why, as every process says it */
    bool told; /* all others were */
    char last_words[CUP__NEWS_TEXT]; /* why this process leaves with an error; or "" */
} cup__mesh;

/* Finds all others. The options are complete. */
cup__mesh *cup__mesh_new(cup__error *error, const cup__meeting *meeting,
                         const cup_comm_options *options);
/* Drops a reference; the last one says goodbye, with the reason where there is one. */
void cup__mesh_leave(cup__mesh *mesh, const char *why);

/* Records why nothing can go on, unless something was recorded before, and has all others told. */
void cup__mesh_fail(cup__mesh *mesh, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Makes what was recorded the error. */
cup_status cup__mesh_error(cup__mesh *mesh, cup__error *error);

void cup__mesh_does(cup__mesh *mesh, const cup__doing *doing);
cup__doing cup__mesh_heard(cup__mesh *mesh, int peer);
/* What a process does, in words. */
const char *cup__doing_text(const cup__doing *doing, char out[128]);

void cup__rope_add(cup__mesh *mesh, cup__rope *rope);
void cup__rope_remove(cup__mesh *mesh, cup__rope *rope);

/* Notes what this process does; makes the text of a flight recorder; writes that and frees it. The
 * first two with the lock held. */
void cup__flight_note(cup__mesh *mesh, const cup__doing *doing);
void cup__flight_text(const cup__mesh *mesh, const char *why, cup__text *out);
void cup__flight_write(const cup__mesh *mesh, cup__text *text);

/* The mesh's sockets; all peers are there, or it fails. The thread is started behind it. */
cup_status cup__mesh_meet(cup__error *error, cup__mesh *mesh, const cup__meeting *meeting);
cup_status cup__watch_start(cup__error *error, cup__mesh *mesh);
void cup__watch_stop(cup__mesh *mesh);

#endif
