/* How published models turn rotary positions, and how many of them: what their config.json says. */
#include <math.h>
#include <string.h>

#include "train/published.h"

#define ORIGINAL "original_max_position_embeddings"
#define BETA_SLOW 1 /* YaRN's bounds where a file does not say them */
#define BETA_FAST 32
#define IN_ANOTHER_WAY "rotary positions scaled in another way"
#define GROWTH 0.1 /* of what YaRN multiplies cosines and sines by, for each e that factor has */

/* What the model was trained on stands among the words of the scaling, or of the whole model, which
 * counts then, as it does for others. */
static const cup__json_node *of_original(const cup__json *json, const cup__json_node *object)
{
    return cup__published_has(json->root, ORIGINAL) ? json->root : object;
}

static cup_status read_llama3(cup__error *error, const cup__json *json,
                              const cup__json_node *object, cup_rope_scaling *s)
{
    CUP_TRY(cup__published_above(error, json, object, "low_freq_factor", &s->low));
    CUP_TRY(cup__published_above(error, json, object, "high_freq_factor", &s->high));
    return cup__json_get_integer(error, json, of_original(json, object), ORIGINAL, 1,
                                 CUP__PUBLISHED_MOST, &s->original);
}

/* What YaRN multiplies cosines and sines by, in part, for a scale of this weight. */
static double growth_of(double factor, double weight)
{
    return factor > 1 ? GROWTH * weight * log(factor) + 1 : 1;
}

/* Said itself, or as the quotient of two; else it follows from the factor, as in ours. */
static cup_status read_attention_factor(cup__error *error, const cup__json *json,
                                        const cup__json_node *object, cup_rope_scaling *s)
{
    double above, below;
    CUP_TRY(cup__published_real_or(error, json, object, "mscale", 0, &above));
    CUP_TRY(cup__published_real_or(error, json, object, "mscale_all_dim", 0, &below));
    if (above != 0 && below != 0)
        s->amplitude = growth_of(s->factor, above) / growth_of(s->factor, below);
    CUP_TRY(cup__published_real_or(error, json, object, "attention_factor", s->amplitude,
                                   &s->amplitude));
    if (s->amplitude > 0 || (!cup__published_has(object, "attention_factor") && s->amplitude == 0))
        return CUP_OK;
    return cup__fail(error, CUP_FORMAT, "%s: the attention factor must be above 0, not %g",
                     json->name, s->amplitude);
}

/* All but the factor may be left out, and that too where the numbers of positions say it. */
static cup_status read_yarn(cup__error *error, const cup__json *json, const cup__json_node *object,
                            cup_gpt_config *g)
{
    cup_rope_scaling *s = &g->rope_scaling;
    const cup__json_node *around = of_original(json, object);
    bool truncated;
    s->yarn = true;
    CUP_TRY(cup__published_whole_or(error, json, around, ORIGINAL, g->context, &s->original));
    s->factor = (double)g->context / (double)s->original;
    if (cup__published_has(object, "factor") || !cup__published_has(around, ORIGINAL))
        CUP_TRY(cup__published_above(error, json, object, "factor", &s->factor));
    CUP_TRY(cup__published_real_or(error, json, object, "beta_slow", 0, &s->low));
    CUP_TRY(cup__published_real_or(error, json, object, "beta_fast", 0, &s->high));
    CUP_TRY(cup__published_flag_or(error, json, object, "truncate", true, &truncated));
    s->untruncated = !truncated;
    return read_attention_factor(error, json, object, s);
}

/* A model reads as far as its positions are stretched, whatever the file says its longest text
 * was before. */
static void stretch(cup_gpt_config *g)
{
    const cup_rope_scaling *s = &g->rope_scaling;
    double reach = floor(s->factor * (double)s->original);
    if ((s->yarn || s->dynamic) && reach > (double)g->context)
        g->context = reach < (double)CUP__PUBLISHED_MOST ? (int64_t)reach : CUP__PUBLISHED_MOST;
}

/* The word for it. Where there is none, nothing may be said but the base; what others nest for
 * each kind of block has no word either. */
static cup_status read_kind(cup__error *error, const cup__json *json, const char *key,
                            const cup__json_node *object, const char **word)
{
    const char *named = cup__json_find(object, "rope_type") ? "rope_type" : "type";
    *word = "default";
    if (cup__json_find(object, named))
        return cup__json_get_string(error, json, object, named, word);
    CUP__JSON_EACH (child, object)
        if (strcmp(child->key, "rope_theta") && strcmp(child->key, "partial_rotary_factor"))
            return cup__published_refuse(error, json, key, IN_ANOTHER_WAY);
    return CUP_OK;
}

static cup_status read_scaling(cup__error *error, const cup__json *json, const char *key,
                               const cup__json_node *object, cup_gpt_config *g)
{
    cup_rope_scaling *s = &g->rope_scaling;
    const char *word;
    CUP_TRY(read_kind(error, json, key, object, &word));
    bool llama3 = !strcmp(word, "llama3"), dynamic = !strcmp(word, "dynamic");
    if (!strcmp(word, "default"))
        return CUP_OK;
    if (s->factor > 0)
        return cup__fail(error, CUP_FORMAT,
                         "%s: \"rope_scaling\" and \"rope_parameters\" both stretch rotary "
                         "positions; take one of them out",
                         json->name);
    if (!strcmp(word, "yarn"))
        return read_yarn(error, json, object, g);
    if (!llama3 && !dynamic && strcmp(word, "linear") != 0)
        return cup__published_refuse(error, json, key, IN_ANOTHER_WAY);
    CUP_TRY(cup__published_above(error, json, object, "factor", &s->factor));
    s->dynamic = dynamic;
    s->original = dynamic ? g->context : 0;
    return llama3 ? read_llama3(error, json, object, s) : CUP_OK;
}

/* Heads of which only the first features are turned are none of these models'. */
static cup_status check_whole_heads(cup__error *error, const cup__json *json,
                                    const cup__json_node *object)
{
    double part;
    CUP_TRY(cup__published_real_or(error, json, object, "partial_rotary_factor", 1, &part));
    return part == 1 ? CUP_OK
                     : cup__published_refuse(error, json, "partial_rotary_factor",
                                             "rotary positions in a part of each head");
}

/* Newer files have what is said of rotary positions in one object. */
cup_status cup__published_rope_read(cup__error *error, const cup__json *json, cup_gpt_config *g)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    CUP_TRY(cup__published_whole_or(error, json, json->root, "max_position_embeddings", 2048,
                                    &g->context));
    CUP_TRY(cup__published_above_or(error, json, json->root, "rope_theta", 10000, &g->rope_base));
    CUP_TRY(check_whole_heads(error, json, json->root));
    for (int i = 0; i < 2; i++) {
        const cup__json_node *object;
        if (!cup__published_has(json->root, keys[i]))
            continue;
        CUP_TRY(cup__json_get(error, json, json->root, keys[i], CUP__JSON_OBJECT, &object));
        CUP_TRY(check_whole_heads(error, json, object));
        CUP_TRY(read_scaling(error, json, keys[i], object, g));
        CUP_TRY(cup__published_above_or(error, json, object, "rope_theta", g->rope_base,
                                        &g->rope_base));
    }
    stretch(g);
    return CUP_OK;
}

static void write_yarn(const cup_rope_scaling *s, cup__json_writer *w)
{
    cup__json_add_integer(w, ORIGINAL, s->original);
    cup__json_add_number(w, "beta_fast", s->high == 0 ? BETA_FAST : s->high);
    cup__json_add_number(w, "beta_slow", s->low == 0 ? BETA_SLOW : s->low);
    if (s->amplitude > 0)
        cup__json_add_number(w, "attention_factor", s->amplitude);
    if (s->untruncated)
        cup__json_add_boolean(w, "truncate", false);
}

static void write_llama3(const cup_rope_scaling *s, cup__json_writer *w)
{
    cup__json_add_number(w, "low_freq_factor", s->low == 0 ? 1 : s->low);
    cup__json_add_number(w, "high_freq_factor", s->high == 0 ? 4 : s->high);
    cup__json_add_integer(w, ORIGINAL, s->original);
}

/* Of dynamic ones the longest text is that up to which nothing is stretched. */
void cup__published_rope_write(const cup_gpt_config *g, cup__json_writer *w)
{
    const cup_rope_scaling *s = &g->rope_scaling;
    cup__json_add_integer(w, "max_position_embeddings", s->dynamic ? s->original : g->context);
    cup__json_add_number(w, "rope_theta", g->rope_base);
    if (s->factor == 0 && !s->yarn)
        return;
    cup__json_open(w, "rope_scaling", CUP__JSON_OBJECT);
    cup__json_add_string(w, "rope_type",
                         s->yarn       ? "yarn"
                         : s->dynamic  ? "dynamic"
                         : s->original ? "llama3"
                                       : "linear");
    cup__json_add_number(w, "factor", s->factor == 0 ? 1 : s->factor);
    if (s->yarn)
        write_yarn(s, w);
    else if (s->original && !s->dynamic)
        write_llama3(s, w);
    cup__json_close(w);
}
