/* The points of a run as lines of numbers with commas between: losses.csv. */
#include <math.h>
#include <string.h>

#include "tensor/context.h"
#include "train/loop.h"

static void add_number(cup__text *text, double value)
{
    cup__text_append(text, ",", 1);
    if (isfinite(value))
        cup__text_add_number(text, value);
}

void cup__points_write(const cup_loop *l, cup__text *text)
{
    cup__text_add(text, "step,loss,norm,rate,validation\n");
    for (size_t i = 0; i < l->point_count; i++) {
        const cup_training_point *p = &l->points[i];
        cup__text_add(text, "%lld", (long long)p->step);
        add_number(text, p->loss);
        add_number(text, p->norm);
        add_number(text, p->rate);
        add_number(text, p->validation);
        cup__text_append(text, "\n", 1);
    }
}

/* One field of a line: a number, or nothing, which is NaN. */
static bool read_number(const char **at, char end, double *out)
{
    *out = NAN;
    if (**at != end) {
        char *behind;
        *out = cup__text_number(*at, &behind);
        if (behind == *at)
            return false;
        *at = behind;
    }
    return *(*at)++ == end;
}

static cup_status read_points(cup_loop *l, const char *text)
{
    const char *at = strchr(text, '\n');
    at = at ? at + 1 : "";
    while (*at) {
        double step;
        cup_training_point *p = cup__loop_point(l, 0);
        if (!p)
            return l->c->error.status;
        if (!read_number(&at, ',', &step) || !read_number(&at, ',', &p->loss) ||
            !read_number(&at, ',', &p->norm) || !read_number(&at, ',', &p->rate) ||
            !read_number(&at, '\n', &p->validation) || !(step >= 0 && step < 1e15))
            return cup__fail(&l->c->error, CUP_FORMAT, "%s: line %zu is not as it was written",
                             CUP__LOSSES_FILE, l->point_count + 1);
        p->step = (int64_t)step;
    }
    return CUP_OK;
}

/* The lines tell of the steps 0, 1, ... that were done, each once, and of evaluations between. A
 * step whose loss is no number was skipped, and has no norm either. */
static cup_status check_points(cup_loop *l, int64_t steps)
{
    int64_t done = 0;
    bool fits = true;
    for (size_t i = 0; i < l->point_count && fits; i++) {
        const cup_training_point *p = &l->points[i];
        bool told = isfinite(p->loss) || isfinite(p->validation) || !isfinite(p->norm);
        fits = p->step == done && told;
        done += !isfinite(p->validation);
    }
    if (fits && done == steps)
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_FORMAT,
                     "%s/state.json says that %lld steps were done, and %s does not tell of just "
                     "these; go back to an older copy of the folder",
                     l->path, (long long)steps, CUP__LOSSES_FILE);
}

cup_status cup__points_read(cup_loop *l, const char *text, int64_t steps)
{
    l->point_count = 0;
    CUP_TRY(read_points(l, text));
    return check_points(l, steps);
}
