/* Every public function that is no op with NULL and 0 for all it takes, and for all but its first
 * argument: read from the headers, so that none is forgotten. None may crash, and what fails says
 * why in the context. */
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"
#include "cupola/dlpack.h"

typedef struct function {
    char gives[64], name[64], takes[64]; /* the type of the result and of the first argument */
} function;

static char text[200000];
static function functions[1000];
static int function_count;

static void drop_comments(char *at)
{
    for (char *begin; (begin = strstr(at, "/*"));) {
        char *end = strstr(begin, "*/");
        EXPECT(end != NULL);
        memset(begin, ' ', (size_t)(end + 2 - begin));
    }
}

/* "const cup_gpt *m, ..." is a "cup_gpt". */
static void read_type(char *to, const char *from, size_t length)
{
    while (length && (isspace((unsigned char)*from) || !strncmp(from, "const ", 6))) {
        size_t step = isspace((unsigned char)*from) ? 1 : 6;
        from += step;
        length -= step;
    }
    size_t used = strcspn(from, " *,)");
    used = used < length ? used : length;
    snprintf(to, 64, "%.*s%s", (int)used, from, memchr(from, '*', length) ? " *" : "");
}

static void read_header(const char *path)
{
    FILE *file = fopen(path, "r");
    EXPECT(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    drop_comments(text);
    for (const char *at = text; (at = strstr(at, "CUP_API "));) {
        at += 8;
        if (at[-9] != '\n') /* where it is defined */
            continue;
        const char *open = strchr(at, '('), *name = open;
        while (isalnum((unsigned char)name[-1]) || name[-1] == '_')
            name--;
        function *f = &functions[function_count++];
        EXPECT(function_count < 1000);
        read_type(f->gives, at, (size_t)(name - at));
        snprintf(f->name, sizeof f->name, "%.*s", (int)(open - name), name);
        read_type(f->takes, open + 1, strcspn(open + 1, ",)"));
    }
}

static void read_headers(void)
{
    static char list[4000];
    EXPECT_INT(test_command(list, sizeof list, "ls include/cupola/*.h | grep -v ops.h"), 0);
    for (char *path = strtok(list, "\n"); path; path = strtok(NULL, "\n"))
        if (!strstr(path, "cupola.h"))
            read_header(path);
    EXPECT(function_count > 140);
}

typedef intptr_t (*called)(const void *, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t,
                           intptr_t, intptr_t, intptr_t, double, double);

static intptr_t call(const function *f, const void *first)
{
    void *found = dlsym(RTLD_DEFAULT, f->name);
    called run;
    if (!found)
        test_fail(__FILE__, __LINE__, "%s is not there", f->name);
    memcpy(&run, &found, sizeof run);
    return run(first, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(name, *list))
            return true;
    return false;
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && !strcmp(name + length - tail, end);
}

TEST(bad_calls_of_nothing)
{
    read_headers();
    for (int i = 0; i < function_count; i++)
        if (strcmp(functions[i].name, "cup_context_new"))
            call(&functions[i], NULL);
}

typedef struct things {
    cup_context *c;
    struct {
        const char *type;
        void *thing;
    } all[20];
} things;

static const char words[] = "the quick brown fox jumps over the lazy dog, and the dog sleeps on; ";

static cup_tensor *loss_of_nothing(cup_context *c, int64_t batch, void *user)
{
    (void)batch;
    return cup_sum(c, user, NULL, 0, false);
}

static cup_loop *make_loop(cup_parameters *list, cup_tensor *x)
{
    const cup_loop_calls calls = {.size = sizeof calls, .loss = loss_of_nothing, .user = x};
    return cup_loop_new(list, &calls,
                        CUP_OPTIONS(cup_loop_options, .schedule = {.high = 0.1, .steps = 1}));
}

static void make_things(things *t)
{
    cup_context *c = t->c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const cup_gpt_config config = {
        .size = sizeof config, .layers = 1, .heads = 1, .width = 8, .context = 4};
    cup_training training = {
        .size = sizeof training, .model = config, .batch = 1, .steps = 1, .rate = 0.1};
    cup_corpus *corpus = cup_corpus_new(c, words, sizeof words - 1);
    cup_tokenizer *tokenizer = cup_tokenizer_char_new(c, corpus);
    cup_data *data = cup_data_new(c, corpus, tokenizer, 4);
    cup_trainer *trainer = cup_trainer_new(c, data, tokenizer, NULL, &training);
    cup_gpt *gpt = cup_trainer_model(trainer);
    cup_tensor *x = cup_require_grad(cup_full(c, CUP_F32, 1, (int64_t[]){2}, 1));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *learned = cup_parameter_new(list, "x", 1, (int64_t[]){2}, NULL);
    cup_parameter parameter = {.name = "x", .tensor = x};
    static char path[400];
    snprintf(path, sizeof path, "%s/x.safetensors", test_folder());
    EXPECT_INT(cup_safetensors_save(c, path, &(cup_named){"x", x}, 1), CUP_OK);
    *t = (things){c,
                  {{"cup_context *", c},
                   {"cup_corpus *", corpus},
                   {"cup_tokenizer *", tokenizer},
                   {"cup_decoder *", cup_decoder_new(c, tokenizer)},
                   {"cup_data *", data},
                   {"cup_expr *", cup_expr_new(c, "x", "k", "k*x")},
                   {"cup_tensor *", x},
                   {"cup_tensors *", cup_safetensors_load(c, path)},
                   {"cup_gpt *", gpt},
                   {"cup_gpt_cache *", cup_gpt_cache_new(gpt, 1, 0)},
                   {"cup_generator *", cup_generator_new(gpt, NULL)},
                   {"cup_parameters *", list},
                   {"cup_loop *", make_loop(list, learned)},
                   {"cup_optimizer *", cup_optimizer_new(c, &parameter, 1, NULL)},
                   {"cup_trainer *", trainer}}};
    EXPECT_INT(cup_error(c), CUP_OK);
}

static void *thing_of(const things *t, const char *type)
{
    for (int i = 0; t->all[i].type; i++)
        if (!strcmp(t->all[i].type, type))
            return t->all[i].thing;
    return NULL;
}

/* All but the context, which may have been freed before. The trainer frees its model. */
static void free_made(const things *t)
{
    cup_optimizer_free(thing_of(t, "cup_optimizer *"));
    cup_loop_free(thing_of(t, "cup_loop *"));
    cup_parameters_free(thing_of(t, "cup_parameters *"));
    cup_generator_free(thing_of(t, "cup_generator *"));
    cup_gpt_cache_free(thing_of(t, "cup_gpt_cache *"));
    cup_trainer_free(thing_of(t, "cup_trainer *"));
    cup_tensors_free(thing_of(t, "cup_tensors *"));
    cup_data_free(thing_of(t, "cup_data *"));
    cup_decoder_free(thing_of(t, "cup_decoder *"));
    cup_tokenizer_free(thing_of(t, "cup_tokenizer *"));
    cup_corpus_free(thing_of(t, "cup_corpus *"));
    cup_expr_free(thing_of(t, "cup_expr *"));
}

/* What these functions give is the caller's, and has a function that frees it. */
static void free_new(const function *f, void *made)
{
    char name[80];
    snprintf(name, sizeof name, "%.*s_free", (int)strcspn(f->gives, " "), f->gives);
    void *found = dlsym(RTLD_DEFAULT, name);
    void (*run)(void *);
    memcpy(&run, &found, sizeof run);
    if (found && made && (ends_with(f->name, "_new") || ends_with(f->name, "_of") ||
                          ends_with(f->name, "_derivative") || ends_with(f->name, "_hold")))
        run(made);
    DLManagedTensorVersioned *exported = made;
    if (made && !strcmp(f->name, "cup_dlpack_export"))
        exported->deleter(exported);
}

/* They take seconds with NULL for all they may leave out, and have tests of their own. */
static const char *const long_ones[] = {"cup_check", "cup_ceiling_measure", NULL};
/* NULL is an answer of theirs. */
static const char *const null_is_fine[] = {
    "cup_grad",         "cup_scope_return", "cup_capture_end",   "cup_tensors_name",
    "cup_tensors_at",   "cup_tensors_find", "cup_decoder_end",   "cup_tokenizer_token",
    "cup_decoder_add",  "cup_parameters_find", "cup_parameters_comm", "cup_data_set",
    "cup_parameters_ring_comm", "cup_parameters_experts_comm", "cup_parameters_documents",
    "cup_trainer_policy_text", "cup_generator_uncaptured",
    "cup_stream_handle", NULL};

TEST(bad_calls_of_something_and_nothing)
{
    things t;
    static char wrong[8000];
    size_t used = 0;
    read_headers();
    make_things(&t);
    for (int i = 0; i < function_count; i++) {
        const function *f = &functions[i];
        void *first = thing_of(&t, f->takes);
        if (!first || ends_with(f->name, "_free") || is_one_of(f->name, long_ones))
            continue;
        intptr_t result = call(f, first);
        bool pointer = strchr(f->gives, '*') != NULL;
        bool status = !strcmp(f->gives, "cup_status") && strcmp(f->name, "cup_error");
        bool failed = (pointer && !result && !is_one_of(f->name, null_is_fine)) ||
                      (status && (int)result != CUP_OK);
        bool silent = failed && strlen(cup_error_text(t.c)) < 12;
        bool torn = !failed && status && cup_error(t.c) != CUP_OK;
        if ((silent || torn) && used < sizeof wrong - 100)
            used += (size_t)snprintf(wrong + used, sizeof wrong - used, " %s", f->name);
        cup_error_clear(t.c);
        cup_grad_recording(t.c, true);
        free_new(f, (void *)result);
    }
    free_made(&t);
    cup_context_free(t.c);
    EXPECT_TEXT(wrong, ""); /* functions that fail without a sentence, or whose result denies it */
}

/* What is made of a context may be freed behind it, as long as it is not used. */
TEST(bad_order_of_freeing)
{
    things t;
    make_things(&t);
    cup_optimizer *o = thing_of(&t, "cup_optimizer *");
    cup_context_free(t.c);
    EXPECT(cup_optimizer_step(o) != CUP_OK);
    EXPECT_INT(cup_optimizer_taken(o), -1);
    free_made(&t);
}
