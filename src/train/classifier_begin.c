/* A run that begins with the weights of another one, which may have told other classes apart, or
 * seen images of another size. */
#include <stdio.h>
#include <string.h>

#include "cupola/grad.h"
#include "cupola/ops.h"
#include "nn/network.h"
#include "tensor/tensor.h"
#include "train/classifier.h"

static bool same_classes(const cup_classifier *a, const cup_classifier *b)
{
    bool same = a->sizes.classes == b->sizes.classes;
    for (int64_t i = 0; same && i < a->sizes.classes; i++)
        same = !strcmp(a->classes[i], b->classes[i]);
    return same;
}

static cup_status refuse(const cup_classifier *m, const char *name)
{
    return cup__fail(&m->c->error, CUP_ARGUMENT,
                     "training: the network in %s has another %s, or none; take its description, "
                     "and images of its size and channels",
                     m->how.from, name);
}

/* The other network's tensor in the place of one of this network; NULL with an error. */
static cup_tensor *find(cup_classifier *m, const cup_classifier *from, const cup_named *to)
{
    cup_tensor *x = cup_parameters_find(from->list, to->name);
    cup__shape a = cup__shape_of(to->tensor), b = {0};
    if (x)
        b = cup__shape_of(x);
    if (x && !cup__shape_equal(&a, &b)) {
        x = cup__network_positions(m->network, to->tensor, from->network);
        m->resized |= x != NULL;
    }
    if (!x && m->c->error.status == CUP_OK)
        refuse(m, to->name);
    return x;
}

static cup_status take(cup_classifier *m, const cup_classifier *from, bool sized)
{
    cup_context *c = m->c;
    int64_t count, others;
    const cup_named *to = cup_parameters_named(m->list, &count);
    cup_parameters_named(from->list, &others);
    CUP_TRY(c->error.status);
    if (count != others)
        return refuse(m, "number of layers");
    for (int64_t i = 0; i < count; i++) {
        if (!sized && cup__network_is_sized(m->network, to[i].tensor))
            continue;
        cup_tensor *x = find(m, from, &to[i]);
        CUP_TRY(c->error.status);
        cup_copy_into(c, to[i].tensor, cup_cast(c, x, to[i].tensor->dtype));
    }
    return c->error.status;
}

static void tell(cup_classifier *m, bool sized)
{
    char head[80] = "";
    if (!sized)
        snprintf(head, sizeof head, "; a new last layer for the %lld classes, which are others",
                 (long long)m->sizes.classes);
    snprintf(m->taken, sizeof m->taken, "with the weights of %.200s%s%s", m->how.from, head,
             m->resized ? "; positions for images of this size" : "");
}

cup_status cup__classifier_begin(cup_classifier *m)
{
    cup_context *c = m->c;
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    cup_classifier *from = cup__classifier_open(c, m->how.from, false);
    bool sized = from && same_classes(m, from);
    cup_status status = from ? take(m, from, sized) : c->error.status;
    if (status == CUP_OK)
        tell(m, sized);
    cup_classifier_free(from);
    cup_scope_return(c, NULL);
    cup_grad_recording(c, was);
    CUP_TRY(status);
    return cup_precision(c, m->how.precision);
}
