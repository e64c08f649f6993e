package api

import (
	"bytes"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/runlog"
	"github.com/lanegate/lanegate/service"
)

// adviceTimeout is how long GET /advice waits for a report that is being computed;
// the work goes on, so that asking again helps.
const adviceTimeout = 20 * time.Second

// Forms of a report.
const (
	formJSON = "json"
	formHTML = "html"
	formText = "text"
)

// comparisonResponse is what promotions have changed.
type comparisonResponse struct {
	// Sentence says how many there are, or that there is none.
	Sentence string                `json:"sentence"`
	Items    []promotionComparison `json:"items"`
}

// promotionComparison compares a class's nights since its promotion with the 7 before it.
type promotionComparison struct {
	Class      string    `json:"class" example:"pos-sales"`
	Lane       string    `json:"lane" example:"parallel"`
	PromotedAt time.Time `json:"promoted_at" format:"date-time"`
	PromotedBy string    `json:"promoted_by" example:"ann"`
	// Enough is false while there are too few nights with runs; Reason then says so.
	Enough bool          `json:"enough"`
	Reason string        `json:"reason,omitempty"`
	Before promotionSide `json:"before"`
	After  promotionSide `json:"after"`
	// OthersBefore and OthersAfter are all other classes, for the latest promotion only.
	OthersBefore *promotionSide `json:"others_before,omitempty"`
	OthersAfter  *promotionSide `json:"others_after,omitempty"`
}

// promotionSide is the runs before or after a promotion.
type promotionSide struct {
	From time.Time `json:"from" format:"date-time"`
	To   time.Time `json:"to" format:"date-time"`
	// Nights (noon to noon, UTC) in which a run ended.
	Nights    int               `json:"nights"`
	Runs      int               `json:"runs"`
	Failures  int               `json:"failures"`
	Waits     quantilesResponse `json:"waits"`
	Durations quantilesResponse `json:"durations"`
}

func newSide(s service.PromotionSide) promotionSide {
	return promotionSide{s.From, s.To, s.Nights, s.Runs, s.Failures, newQuantiles(s.Waits), newQuantiles(s.Durations)}
}

// getAdvice reports on the gateway's own run log.
//
//	@Summary		Who blocks whom, and would lanes help
//	@Description	The report of lanegate advise, about the gateway's own run log and what was imported, under the present lanes, classes and resources; its JSON form is described in docs/advise.md. Computed in the background, once a minute at most for everybody; 503 in_progress asks to try again. compare=promotion instead compares the nights since each promotion with the 7 before it (JSON only).
//	@ID				get-advice
//	@Tags			advice
//	@Produce		json
//	@Produce		html
//	@Produce		plain
//	@Param			window	query		string	false	"Go duration or days (7d), default 7d"
//	@Param			format	query		string	false	"json, html or text; else by the Accept header"
//	@Param			compare	query		string	false	"promotion"
//	@Success		200		{object}	object
//	@Failure		400,401,403,404,429,503	{object}	problem
//	@Router			/advice [get]
//	@Security		bearer
func (a *API) getAdvice(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, adviceTimeout)
	defer cancel()
	p := query(r)
	compare := p.flag("compare", "promotion")
	form := p.str("format")
	if form == "" {
		form = wantedForm(r)
	}
	window := defaultWindow
	if !compare {
		window = p.window("window")
	}
	switch {
	case form != formJSON && form != formHTML && form != formText:
		p.bad("format", "must be json, html or text")
	case compare && p.values.Has("format") && form != formJSON:
		p.bad("format", "a comparison has one form, json")
	}
	if err := p.done(); err != nil {
		return err
	}
	if compare {
		return a.comparePromotions(w, r)
	}
	advice, err := a.svc.Advice(r.Context(), window)
	if err != nil {
		return err
	}
	var body bytes.Buffer
	typ := "text/plain; charset=utf-8"
	switch form {
	case formHTML:
		typ, err = "text/html; charset=utf-8", advice.Report.HTML(&body)
	case formText:
		err = advice.Report.Text(&body)
	default:
		return encode(w, http.StatusOK, advice.Report)
	}
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", typ)
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body.Bytes()) // an error means that the client has left
	return nil
}

// wantedForm is the form that the Accept header asks for: the first that there is.
func wantedForm(r *http.Request) string {
	for part := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		typ, _, _ := mime.ParseMediaType(part)
		switch typ {
		case "text/html":
			return formHTML
		case "text/plain":
			return formText
		case typeJSON, "*/*":
			return formJSON
		}
	}
	return formJSON
}

func (a *API) comparePromotions(w http.ResponseWriter, r *http.Request) error {
	list, err := a.svc.Promotions(r.Context())
	if err != nil {
		return err
	}
	out := comparisonResponse{Items: []promotionComparison{}, Sentence: "No class is outside serial by a promotion, so there is nothing to compare."}
	enough := 0
	for _, c := range list {
		item := promotionComparison{
			Class: c.Class, Lane: c.Lane, PromotedAt: c.PromotedAt, PromotedBy: c.Actor, Enough: c.Enough, Reason: c.Why,
			Before: newSide(c.Before), After: newSide(c.After),
		}
		if c.Enough {
			enough++
		}
		if c.OthersBefore != nil {
			before, after := newSide(*c.OthersBefore), newSide(*c.OthersAfter)
			item.OthersBefore, item.OthersAfter = &before, &after
		}
		out.Items = append(out.Items, item)
	}
	if len(list) > 0 {
		out.Sentence = "Promoted classes with enough nights on both sides to compare: " + strconv.Itoa(enough) + " of " + strconv.Itoa(len(list)) + "."
	}
	return encode(w, http.StatusOK, out)
}

// importResponse accounts for every row of an import:
// rows = used + unfinished + never_started + steps + the sum of dropped,
// and used = added + already_there.
type importResponse struct {
	Source string `json:"source" example:"import"`
	Format string `json:"format" example:"csv"`
	// Columns says which column was taken for what.
	Columns      map[string]string `json:"columns"`
	Rows         int               `json:"rows"`
	Used         int               `json:"used"`
	Added        int               `json:"added"`
	AlreadyThere int               `json:"already_there"`
	// Clamped and Repeats are among the used ones; see docs/advise.md.
	Clamped      int            `json:"clamped"`
	Repeats      int            `json:"repeats"`
	Unfinished   int            `json:"unfinished"`
	NeverStarted int            `json:"never_started"`
	Steps        int            `json:"steps"`
	Dropped      []dropResponse `json:"dropped"`
}

// dropResponse is a reason why rows were dropped.
type dropResponse struct {
	Reason string `json:"reason"`
	Count  int    `json:"count"`
	Lines  []int  `json:"first_lines"`
	// Example names line and column of the first one, in a sentence.
	Example string `json:"example"`
}

// importRunLog takes a log of runs from elsewhere.
//
//	@Summary		Import an older run log
//	@Description	JSON lines or CSV with a header (also SWF, sacct -P and Airflow's export), up to 20,000 runs; columns are found by their usual names. The rows are for GET /advice only: jobs, freshness, statistics and baselines of verification never see them. Rows that were imported before change nothing, so an import can be repeated. lanegate import sends large files in parts.
//	@ID				import-run-log
//	@Tags			advice
//	@Accept			plain
//	@Produce		json
//	@Param			format	query		string	false	"csv, jsonl, swf or sacct; found out when left out"
//	@Param			columns	query		string	false	"role=column,…, where names don't tell: submitted, eligible, started, finished, duration, class, status, exit, attempt"
//	@Param			tz		query		string	false	"Zone of times that carry none, e.g. Europe/Berlin"
//	@Param			request	body		string	true	"The log"
//	@Success		200		{object}	importResponse
//	@Failure		400,401,403,413,415,422,429,503	{object}	problem
//	@Router			/run-log [post]
//	@Security		bearer
func (a *API) importRunLog(w http.ResponseWriter, r *http.Request) error {
	opts, err := importOptions(query(r))
	if err != nil {
		return err
	}
	body, err := a.readLog(w, r)
	if err != nil {
		return err
	}
	r, cancel := timed(r, adviceTimeout)
	defer cancel()
	res, err := a.svc.ImportRunLog(r.Context(), runlog.Source{Name: "the body", Reader: bytes.NewReader(body)}, opts, callerOf(r.Context()).Name)
	if err != nil {
		return err
	}
	acc := res.Account
	out := importResponse{
		Source: runlog.SourceImport, Format: acc.Format, Columns: acc.Columns, Rows: acc.Rows, Used: acc.Used, Added: res.Added, AlreadyThere: acc.Used - res.Added,
		Clamped: acc.Clamped, Repeats: acc.Repeats, Unfinished: acc.Unfinished, NeverStarted: acc.NeverStarted, Steps: acc.Steps, Dropped: []dropResponse{},
	}
	for _, d := range acc.Dropped {
		out.Dropped = append(out.Dropped, dropResponse{d.Reason, d.Count, d.Lines, d.Example})
	}
	return encode(w, http.StatusOK, out)
}

func importOptions(p *params) (runlog.ReadOptions, error) {
	var opts runlog.ReadOptions
	switch f := runlog.Format(p.str("format")); f {
	case runlog.Auto, runlog.CSV, runlog.JSON, runlog.SWF, runlog.Slurm:
		opts.Format = f
	default:
		p.bad("format", "must be csv, jsonl, swf or sacct")
	}
	var err error
	if opts.Columns, err = runlog.ParseColumns(p.str("columns")); err != nil {
		p.bad("columns", "%v", err)
	}
	if tz := p.str("tz"); tz != "" {
		if opts.Zone, err = time.LoadLocation(tz); err != nil || tz == "Local" {
			p.bad("tz", "%q is not a zone; write it like UTC or Europe/Berlin", tz)
		}
	}
	return opts, p.done()
}

// readLog reads a body that is a log, of any type but those that would have damaged it.
func (a *API) readLog(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	typ, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if typ == "multipart/form-data" {
		return nil, errLogType.With("a form is not taken; send the file itself: curl --data-binary @runs.csv -H 'Content-Type: text/csv'.")
	}
	if r.ContentLength > a.o.MaxBatch {
		return nil, tooLarge(a.o.MaxBatch)
	}
	body, err := a.readAll(w, r, a.o.MaxBatch)
	if err != nil {
		return nil, err
	}
	enc := r.Header.Get("Content-Encoding")
	if bytes.HasPrefix(body, []byte{0x1f, 0x8b}) || (enc != "" && !strings.EqualFold(enc, "identity")) {
		return nil, errLogType.With("a compressed log is not taken here; send it uncompressed, or use lanegate import, which reads gzip.")
	}
	return body, nil
}

var errLogType = &lanegate.Error{Kind: lanegate.KindMediaType, Code: "unsupported_media_type"}
