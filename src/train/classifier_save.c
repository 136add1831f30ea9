/* What is a classifier's own in its checkpoints: the training, the sizes, the classes and which
 * images it learned from, in state.json. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "io/checkpoint.h"
#include "tensor/context.h"
#include "train/classifier.h"

#define KIND "classifier"

/* The files of a run: those of its checkpoint, then those written from it. */
static const char *const files[] = {CUP__MODEL_FILE, CUP__OPTIMIZER_FILE, CUP__LOSSES_FILE,
                                    "loss.svg",      "loss.html",         NULL};

static void write(const cup_loop *l, cup__json_writer *writer)
{
    const cup_classifier *m = l->calls.user;
    cup__json_add_unsigned(writer, "images", cup_images_hash(m->train));
    cup__json_add_integer(writer, "height", m->sizes.height);
    cup__json_add_integer(writer, "width", m->sizes.width);
    cup__json_add_integer(writer, "channels", m->sizes.channels);
    cup__json_open(writer, "classes", CUP__JSON_ARRAY);
    for (int64_t i = 0; i < m->sizes.classes; i++)
        cup__json_add_string(writer, NULL, m->classes[i]);
    cup__json_close(writer);
    cup__classification_write(writer, &m->how);
}

static cup_status check(cup_loop *l, const cup__checkpoint *checkpoint)
{
    const cup_classifier *m = l->calls.user;
    cup_classification found = {0};
    uint64_t images;
    CUP_TRY(cup__classification_read(l->c, &checkpoint->json, checkpoint->state, &found));
    CUP_TRY(cup__json_get_unsigned(&l->c->error, &checkpoint->json, checkpoint->state, "images",
                                   &images));
    const char *differs = cup__classification_differs(&m->how, &found);
    if (differs)
        return cup__fail(&l->c->error, CUP_ARGUMENT,
                         "training: %s is not what the checkpoint in %s was made with; leave it "
                         "out, or start a new run in another folder",
                         differs, l->path);
    if (images == cup_images_hash(m->train))
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_ARGUMENT,
                     "training: the images are not those of the checkpoint in %s; give the same "
                     "files, unchanged, or start a new run in another folder",
                     l->path);
}

const cup__loop_checkpoints cup__classifier_checkpoints = {
    .files = files,
    .write = write,
    .check = check,
};

cup_status cup_classification_vacant(cup_context *c, const char *folder)
{
    return cup__loop_vacant(c, folder, files);
}

static cup_status open_folder(cup_context *c, const char *folder, cup__checkpoint *out)
{
    if (!folder)
        return cup__fail(&c->error, CUP_ARGUMENT, "the folder of a run is NULL; name one");
    return cup__checkpoint_open(&c->error, folder, out);
}

cup_status cup_classification_load(cup_context *c, const char *folder, cup_classification *out,
                                   int64_t *steps)
{
    cup__checkpoint checkpoint;
    int64_t done;
    if (!c)
        return CUP_MEMORY;
    CUP_TRY(c->error.status);
    if (!out)
        return cup__fail(&c->error, CUP_ARGUMENT, "the place for a training is NULL");
    CUP_TRY(open_folder(c, folder, &checkpoint));
    memset(out, 0, sizeof *out);
    cup_status status = cup__loop_state_read(&c->error, &checkpoint, KIND, &done);
    if (status == CUP_OK)
        status = cup__classification_read(c, &checkpoint.json, checkpoint.state, out);
    cup__checkpoint_close(&checkpoint);
    if (status == CUP_OK && steps)
        *steps = done;
    return status;
}

static cup_status read_classes(cup_classifier *m, const cup__checkpoint *checkpoint)
{
    const cup__json *json = &checkpoint->json;
    const cup__json_node *list;
    cup__error *error = &m->c->error;
    int64_t i = 0;
    CUP_TRY(cup__json_get(error, json, checkpoint->state, "classes", CUP__JSON_ARRAY, &list));
    m->sizes.classes = list->count;
    CUP_TRY(cup__classifier_name(m));
    CUP__JSON_EACH(name, list)
    {
        if (name->kind != CUP__JSON_STRING)
            return cup__fail(error, CUP_FORMAT, "%s: a class has no name", json->name);
        m->classes[i] = cup__strdup(name->string);
        if (!m->classes[i++])
            return cup__no_memory(error, json->name);
    }
    return CUP_OK;
}

static cup_status load(cup_classifier *m, const cup__checkpoint *checkpoint, bool average)
{
    const cup__json *json = &checkpoint->json;
    const cup__json_node *state = checkpoint->state;
    cup__error *error = &m->c->error;
    int64_t step, count, *sizes[] = {&m->sizes.height, &m->sizes.width, &m->sizes.channels};
    static const char *const names[] = {"height", "width", "channels"};
    CUP_TRY(cup__loop_state_read(error, checkpoint, KIND, &step));
    CUP_TRY(cup__classification_read(m->c, json, state, &m->how));
    for (int i = 0; i < 3; i++)
        CUP_TRY(cup__json_get_integer(error, json, state, names[i], 1, 65535, sizes[i]));
    CUP_TRY(read_classes(m, checkpoint));
    CUP_TRY(cup_precision(m->c, m->how.precision));
    CUP_TRY(cup__classifier_make(m));
    const cup_named *tensors = cup_parameters_named(m->list, &count);
    CUP_TRY(cup__checkpoint_fill(m->c, checkpoint, CUP__MODEL_FILE, tensors, count));
    return average ? cup__take_averages(m->c, checkpoint, m->list, m->how.optimizer.average)
                   : CUP_OK;
}

cup_classifier *cup__classifier_open(cup_context *c, const char *folder, bool average)
{
    cup__checkpoint checkpoint;
    if (!c || c->error.status != CUP_OK || open_folder(c, folder, &checkpoint) != CUP_OK)
        return NULL;
    cup_classifier *m = cup__calloc(1, sizeof *m);
    cup_status status = m ? CUP_OK : cup__no_memory(&c->error, folder);
    if (m) {
        m->c = c;
        m->accuracy = NAN;
        m->sizes.size = sizeof m->sizes;
        cup_scope_open(c);
        status = load(m, &checkpoint, average);
        cup_scope_return(c, NULL);
    }
    cup__checkpoint_close(&checkpoint);
    if (status == CUP_OK)
        return m;
    cup_classifier_free(m);
    return NULL;
}

/* Ready to be asked. */
static cup_classifier *fold(cup_classifier *m)
{
    if (!m)
        return NULL;
    cup_scope_open(m->c);
    cup_status status = cup_network_fold(m->network);
    cup_scope_return(m->c, NULL);
    if (status == CUP_OK)
        return m;
    cup_classifier_free(m);
    return NULL;
}

cup_classifier *cup_classifier_load(cup_context *c, const char *folder)
{
    return fold(cup__classifier_open(c, folder, false));
}

cup_classifier *cup_classifier_load_average(cup_context *c, const char *folder)
{
    return fold(cup__classifier_open(c, folder, true));
}
