// Command gen writes the committed specification: it lets swag collect the
// comments of package api into Swagger 2.0, turns that into OpenAPI 3.0.3 and
// mends what Swagger 2.0 can't say. Run it with go generate ./openapi.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/getkin/kin-openapi/openapi2"
	"github.com/getkin/kin-openapi/openapi2conv"
	"github.com/getkin/kin-openapi/openapi3"
)

func main() {
	api := flag.String("api", "../api", "folder of the handlers")
	out := flag.String("out", "openapi.json", "file to write")
	flag.Parse()
	if err := run(context.Background(), *api, *out); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, api, out string) error {
	swagger, err := collect(ctx, api)
	if err != nil {
		return err
	}
	doc, err := convert(ctx, swagger)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

// collect runs swag over the handlers and the domain's words they use.
func collect(ctx context.Context, api string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "lanegate-swag-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	root := filepath.Dir(filepath.Clean(api))
	cmd := exec.CommandContext(ctx, "go", "tool", "swag", "init", "-q", "-d", api+","+root, "-g", "api.go",
		"--exclude", strings.Join(beside(root), ","), "-o", dir, "--outputTypes", "json", "--useStructName")
	cmd.Stderr = os.Stderr
	if output, err := cmd.Output(); err != nil {
		return nil, fmt.Errorf("swag: %w: %s", err, output)
	}
	return os.ReadFile(filepath.Join(dir, "swagger.json"))
}

// beside lists the folders next to root's Go files: swag looks into all folders
// below those it is given, but only the root package itself has words of the API.
func beside(root string) []string {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != "api" {
			dirs = append(dirs, filepath.Join(root, e.Name()))
		}
	}
	return dirs
}

// convert turns Swagger 2.0 into a valid OpenAPI 3.0.3 document.
func convert(ctx context.Context, swagger []byte) (*openapi3.T, error) {
	var old openapi2.T
	if err := json.Unmarshal(swagger, &old); err != nil {
		return nil, fmt.Errorf("read swag's output: %w", err)
	}
	doc, err := openapi2conv.ToV3(&old)
	if err != nil {
		return nil, fmt.Errorf("convert: %w", err)
	}
	doc.OpenAPI = "3.0.3"
	doc.Servers = openapi3.Servers{{URL: "/", Description: "This gateway"}}
	mend(doc)
	if err := doc.Validate(ctx); err != nil {
		return nil, fmt.Errorf("the result is not valid: %w", err)
	}
	return doc, nil
}

// problemType is the media type of every failure (RFC 9457).
const problemType = "application/problem+json"

const problemRef = "#/components/schemas/problem"

// mend says what Swagger 2.0 has no words for.
func mend(doc *openapi3.T) {
	// Swagger 2.0 knows a bearer token only as "some header".
	for name := range doc.Components.SecuritySchemes {
		scheme := openapi3.NewSecurityScheme().WithType("http").WithScheme("bearer")
		scheme.Description = "A token made with `lanegate token new`. Without tokens in its configuration the gateway takes every request from its own machine."
		doc.Components.SecuritySchemes[name] = &openapi3.SecuritySchemeRef{Value: scheme}
	}
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			for status, ref := range op.Responses.Map() {
				mendResponse(status, ref.Value)
			}
			mendBody(op)
			mendDryRun(op, doc.Components.Schemas["dryRunResponse"].Value)
			addInternal(op, doc.Components.Schemas["problem"].Value)
		}
	}
	mendSchemas(doc.Components.Schemas)
}

// mendSchemas describes what has no type of its own in Go's struct tags.
func mendSchemas(schemas openapi3.Schemas) {
	set := func(schema, property string, to *openapi3.Schema) {
		if s := schemas[schema]; s != nil && s.Value.Properties[property] != nil {
			s.Value.Properties[property] = to.NewRef()
		}
	}
	anyJSON := openapi3.NewSchema()
	anyJSON.Description = "Any JSON value, verbatim: digits, escapes and the order of keys stay as they were sent."
	anyJSON.Nullable = true
	width := openapi3.NewOneOfSchema(openapi3.NewStringSchema().WithEnum("auto"), openapi3.NewIntegerSchema().WithMin(1))
	width.Example = "auto"
	verdict := openapi3.NewStringSchema().WithEnum("passed", "failed", "inconclusive", nil)
	verdict.Description = "null until the run is over, and for aborted ones."
	verdict.Nullable = true
	set("verificationResponse", "verdict", verdict)
	payloads := openapi3.NewArraySchema()
	payloads.Items = anyJSON.NewRef()
	payloads.Description = "Used in turn, verbatim; with the source payloads only."
	for _, schema := range []string{"memberRequest", "classVerificationRequest", "VerificationMember"} {
		set(schema, "payloads", payloads)
	}
	set("submitRequest", "payload", anyJSON)
	set("jobResponse", "payload", anyJSON)
	set("jobResponse", "result", anyJSON)
	set("completeRequest", "result", anyJSON)
	set("laneRequest", "width", width)
	set("laneResponse", "width_setting", width)
	if expected := schemas["expectedResponse"]; expected != nil {
		expected.Value.Nullable = true // nobody can say
	}
	if problem := schemas["problem"]; problem != nil {
		// RFC 9457: clients ignore members that they do not know.
		open := true
		problem.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: &open}
	}
}

// addInternal documents the answer that no operation plans for.
func addInternal(op *openapi3.Operation, problem *openapi3.Schema) {
	if op.Responses.Value("500") != nil {
		return
	}
	r := openapi3.NewResponse().WithDescription("A fault of the gateway; its log has it under the request id").
		WithContent(openapi3.Content{problemType: openapi3.NewMediaType().WithSchemaRef(openapi3.NewSchemaRef(problemRef, problem))})
	op.Responses.Set("500", &openapi3.ResponseRef{Value: r})
}

// mendResponse gives failures their own media type and the headers that come with them.
func mendResponse(status string, r *openapi3.Response) {
	if r == nil {
		return
	}
	if r.Description == nil || *r.Description == "" {
		r.WithDescription("Status " + status)
	}
	for _, media := range r.Content {
		if media.Schema == nil || media.Schema.Ref != problemRef {
			continue
		}
		r.Content = openapi3.Content{problemType: media}
		break
	}
	switch status {
	case "429", "503":
		setHeader(r, "Retry-After", "Seconds to wait before the next try, 1 to 300.", openapi3.NewIntegerSchema())
	case "401":
		setHeader(r, "WWW-Authenticate", "Always Bearer.", openapi3.NewStringSchema())
	}
}

func setHeader(r *openapi3.Response, name, description string, schema *openapi3.Schema) {
	if r.Headers == nil {
		r.Headers = openapi3.Headers{}
	}
	header := &openapi3.Header{}
	header.Description, header.Schema = description, schema.NewRef()
	r.Headers[name] = &openapi3.HeaderRef{Value: header}
}

// mendBody makes a documented body required, but for the demotions, which only
// take a reason, and for heartbeats, whose token may be in the header: any other
// call that may come without a body documents none.
func mendBody(op *openapi3.Operation) {
	if op.RequestBody != nil && op.RequestBody.Value != nil {
		op.RequestBody.Value.Required = !strings.HasPrefix(op.OperationID, "demote-") && op.OperationID != "heartbeat-attempt"
	}
}

// dryRunRef is what a change answers that is only tried, unless its own answer
// says what would be.
const dryRunRef = "#/components/schemas/dryRunResponse"

// mendDryRun adds the answer of a dry run to those of a change that has one.
func mendDryRun(op *openapi3.Operation, dry *openapi3.Schema) {
	ok := op.Responses.Value("200")
	if ok == nil || op.Parameters.GetByInAndName("query", "dry_run") == nil || len(op.Tags) > 0 && op.Tags[0] == "verification" {
		return
	}
	for _, media := range ok.Value.Content {
		if media.Schema.Ref != dryRunRef {
			either := openapi3.NewSchema()
			either.AnyOf = openapi3.SchemaRefs{media.Schema, openapi3.NewSchemaRef(dryRunRef, dry)}
			media.Schema = either.NewRef()
		}
	}
}
