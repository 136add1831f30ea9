/* The ways of equal.c on all GPUs there are: losses and gradients are those of one GPU. A group of
 * processes goes through all ways of its size, or with EQUAL_ONLY those whose name has that in it;
 * where a way ends it, another one goes on behind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/together.h"
#include "test.h"
#include "train/equal.h"

#define MOST 16

typedef struct cards {
    equal_reference *reference;
    int gpus;
    int count, at; /* the processes of this group, and the way that it is at */
    int passed, failed;
} cards;

static void alone(cup_context *c, cup_comm *comm, void *user)
{
    cards *r = user;
    (void)comm;
    r->gpus = cup_gpu_count(NULL, 0);
    for (int i = 0; i < EQUAL_MODELS && r->gpus > 1; i++)
        equal_alone(c, r->reference, i);
}

static void tell(cards *r, const char *name, const char *what, const char *wrong)
{
    *(*wrong ? &r->failed : &r->passed) += 1;
    fprintf(stderr, "equal: %s: %s%s%s\n", name, what, *wrong ? "; WRONG: " : "", wrong);
}

static void go_through(cup_context *c, cup_comm *comm, void *user)
{
    cards *r = user;
    char name[EQUAL_NAME], what[200];
    const char *only = getenv("EQUAL_ONLY");
    equal_distance d;
    for (int i = r->at; i < equal_way_count && cup_error(c) == CUP_OK; i++) {
        const equal_way *w = &equal_ways[i];
        equal_name(w, name);
        if (w->count != r->count || (only && !strstr(name, only)))
            continue;
        if (cup_comm_rank(comm) == 0)
            r->at = i;
        equal_compare(c, comm, w, r->reference, &d);
        if (cup_error(c) != CUP_OK || cup_comm_rank(comm) != 0)
            continue;
        snprintf(what, sizeof what, "losses within %.1e, norms %.1e, gradients %.1e", d.loss,
                 d.norm, d.gradient);
        tell(r, name, what, d.wrong);
    }
}

/* Copies whose sums have one order, twice. */
static void repeat(cup_context *c, cup_comm *comm, void *user)
{
    cards *r = user;
    for (int zero = 0; zero < 4; zero++) {
        const equal_way w = {.count = r->count, .zero = zero};
        char name[EQUAL_NAME];
        equal_points first = {0}, again = {0};
        equal_train(c, comm, &w, &first);
        equal_train(c, comm, &w, &again);
        equal_name(&w, name);
        if (cup_error(c) == CUP_OK && cup_comm_rank(comm) == 0)
            tell(r, name, "in one order, twice",
                 memcmp(&first, &again, sizeof first) ? "other bits" : "");
    }
}

static const char *last_word(const together_end *ends, int count)
{
    for (int i = 0; i < count; i++)
        if (ends[i].code)
            return *ends[i].text ? ends[i].text : "a process ended";
    return "";
}

static const char *go(cards *r, together_body body, together_end *ends)
{
    memset(ends, 0, MOST * sizeof *ends);
    together_look(r->count,
                  CUP_OPTIONS(cup_comm_options, .count = r->count, .address = together_address(),
                              .timeout = 40),
                  body, r, ends);
    return last_word(ends, r->count);
}

static void go_with(cards *r, together_end *ends)
{
    char name[EQUAL_NAME];
    together_on("cuda", false);
    for (r->at = 0; r->at < equal_way_count; r->at++) {
        const char *wrong = go(r, go_through, ends);
        if (!*wrong)
            break;
        equal_name(&equal_ways[r->at], name);
        tell(r, name, "ended", wrong);
    }
    if (getenv("EQUAL_ONLY"))
        return;
    together_on("cuda", true);
    const char *wrong = go(r, repeat, ends);
    if (*wrong)
        tell(r, "copies in one order", "ended", wrong);
}

TEST_LIMITED(gpu_equal_losses, 600)
{
    static together_end ends[MOST];
    cards *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(r != MAP_FAILED);
    *r = (cards){.reference = equal_reference_new(), .count = 1};
    together_on("cuda", false);
    const char *wrong = go(r, alone, ends);
    if (r->gpus < 2)
        test_skip("%d GPUs, and at least two share a model out", r->gpus);
    EXPECT_TEXT(wrong, "");
    for (r->count = 2; r->count <= 8 && r->count <= r->gpus; r->count *= 2)
        go_with(r, ends);
    fprintf(stderr, "equal: %d passed, %d failed\n", r->passed, r->failed);
    EXPECT_INT(r->failed, 0);
    EXPECT(r->passed > 0);
}
