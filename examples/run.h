/* How the examples of the library's training loop run one: with a folder they go on from the
 * checkpoint in it, and after some steps they stop, as at a signal, if they are told to. */
#include <cupola/cupola.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct run {
    cup_loop *loop;
    int64_t stop; /* 0: never */
} run;

static void show(const cup_training_point *point, void *user)
{
    (void)user;
    if (!isnan(point->validation))
        printf("step %3d  validation loss %.6f\n", (int)point->step, point->validation);
}

static bool is_over(void *user)
{
    const run *r = user;
    return r->stop > 0 && cup_loop_steps(r->loop) >= r->stop;
}

/* Trains and frees the loop; `words` are those of the command, PROGRAM [FOLDER [STOP]]. Returns
 * what main returns. */
static int run_loop(cup_context *c, cup_loop *loop, int steps, int count, char **words)
{
    run r = {.loop = loop, .stop = count > 2 ? atoi(words[2]) : 0};
    if (cup_loop_has_checkpoint(loop) && cup_loop_resume(loop) == CUP_OK)
        printf("goes on behind %d steps\n", (int)cup_loop_steps(loop));
    cup_status status = cup_loop_run(loop, CUP_OPTIONS(cup_training_hooks, .point = show,
                                                       .stop = is_over, .user = &r));
    printf("%d of %d steps are done\n", (int)cup_loop_steps(loop), steps);
    int failed = status != CUP_OK && status != CUP_INTERRUPTED;
    if (failed)
        fprintf(stderr, "%s\n", cup_error_text(c));
    cup_loop_free(loop);
    return failed;
}
