#include "tensor/away.h"

static bool is_away(const cup_tensor *t, const cup_context *c)
{
    return t && t->context == c && t->storage->away;
}

cup_status cup__away_begin(cup_context *c, cup_tensor *const *in, int count, bool view)
{
    cup__bringer *b = c->bringer;
    bool any = false;
    for (int i = 0; in && i < count; i++)
        if (is_away(in[i], c)) {
            any = true;
            if (!view && (!b || in[i]->storage->away->by != b))
                CUP_TRY(cup__away_check(in[i], "computing with"));
        }
    if (any && !view && b && !b->paused && c->error.status == CUP_OK)
        CUP_TRY(b->bring(b, in, count));
    for (int i = 0; any && i < count; i++)
        if (is_away(in[i], c))
            in[i]->data = (char *)in[i]->storage->data + in[i]->offset;
    if (b)
        b->depth++;
    return CUP_OK;
}

void cup__away_end(cup_context *c)
{
    if (c->bringer)
        c->bringer->depth--;
}

cup_status cup__away_check(const cup_tensor *t, const char *verb)
{
    char text[CUP__SHAPE_TEXT];
    if (!t->storage->away || t->storage->away->here)
        return CUP_OK;
    return cup__fail(&t->context->error, CUP_STATE,
                     "%s %s: another process keeps the values of this parameter; save a checkpoint "
                     "and load that, or split less over the processes",
                     verb, cup__tensor_text(t, text));
}
